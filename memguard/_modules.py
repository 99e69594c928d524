"""How modules are called: compiled, scripted, hooked; torch's private parts that decide it.

Like `_torch` it imports torch, and each private name says in which version it was seen and what
happens without it.
"""

from __future__ import annotations

import sys
from types import CodeType
from typing import Any, cast

import torch


def has_global_forward_hooks() -> bool:
    """Whether hooks run after every module's forward; taken to be so where torch does not tell."""
    table = getattr(torch.nn.modules.module, "_global_forward_hooks", True)  # seen in 1.6 to 2.13
    return bool(table)


def is_unused_container(module: torch.nn.Module) -> bool:
    """Whether the module has no forward of its own (ModuleDict, ModuleList, a bare namespace)."""
    if is_scripted(module):
        return False
    unimplemented = getattr(torch.nn.modules.module, "_forward_unimplemented", None)
    return type(module).forward is unimplemented or isinstance(
        module, (torch.nn.ModuleDict, torch.nn.ModuleList)
    )


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether calls of the module go through torch.compile."""
    if getattr(module, "_compiled_call_impl", None) is not None:  # seen in 2.3 to 2.13
        return True
    return type(module).__name__ == "OptimizedModule"


def compiled_frames() -> int:
    """How many frames dynamo has compiled in this process; 0 when it was never used."""
    # Two counters, since a program may clear the first; seen in 2.4 to 2.13.
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    total = int(counters["frames"]["total"]) if counters is not None else 0
    convert = sys.modules.get("torch._dynamo.convert_frame")
    return total + int(getattr(convert, "FRAME_COUNTER", 0))


def is_scripted(module: torch.nn.Module) -> bool:
    """Whether the module is TorchScript, whose hooks are compiled and must not be touched."""
    return isinstance(module, torch.jit.ScriptModule)


def builtins_of_torchscript() -> dict[int, Any]:
    """The functions that TorchScript knows by identity; empty where it does not tell."""
    try:
        read: Any = torch.jit._builtins._get_builtin_table  # seen in 1.0 to 2.13
        return cast("dict[int, Any]", read())
    except Exception:  # scripts that compile these calls are rarer than versions without it
        return {}


def script_compilers() -> list[tuple[Any, str]]:
    """The module and name of what `torch.jit.script` compiles a module with; empty without it."""
    recursive: Any = getattr(torch.jit, "_recursive", None)
    name = "create_script_module"  # seen in 2.13.0
    return [(recursive, name)] if hasattr(recursive, name) else []


def savers() -> list[tuple[Any, str]]:
    """The module and name of what `torch.save` pickles with; empty without it.

    Then what stands for a hook is saved, and `torch.load` refuses that unless it may load anything.
    The format of before torch 1.6 saves source text, too, which `torch.load` refuses in any case.
    """
    name = "_save"  # seen in 2.13.0
    return [(torch.serialization, name)] if hasattr(torch.serialization, name) else []


def keep_from_dynamo(code: CodeType) -> None:
    """Have dynamo never compile a function by itself, nor what it calls; inlined it still is."""
    dynamo: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    mark = getattr(dynamo, "set_code_exec_strategy", None)  # seen in 2.13.0
    if mark is not None:
        skip = dynamo._FrameAction.SKIP
        mark(code, dynamo._FrameExecStrategy(skip, skip))


def outermost_called() -> torch.nn.Module | None:
    """The module in whose call this thread is, the outermost of several; None when in none.

    Found in the frames of `Module._call_impl` (seen in 2.4 to 2.13; without it None).
    """
    code = getattr(getattr(torch.nn.Module, "_call_impl", None), "__code__", None)
    found, frame = None, sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is code:
            # What this leaves on the frame goes with the call, as its arguments do.
            found = frame.f_locals.get("self")
    return found
