"""The statement of the user's source that makes a holder grow, found by syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from memguard.explain import special
from memguard.explain.candidates import Candidates, attribute_of, scopes_seeing, scopes_with
from memguard.explain.choosing import Choice, Chooser
from memguard.explain.loops import running_regions
from memguard.explain.places import Place, Release, Spot, Statement
from memguard.explain.program import Program
from memguard.explain.subject import Subject
from memguard.explain.syntax import Scope, Source
from memguard.explain.text import code_of, context_of, read_line

__all__ = ["find_statement", "read_line"]
