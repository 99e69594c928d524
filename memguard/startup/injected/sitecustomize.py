"""What `memguard run` puts first on its children's path, in place of the start-up line.

An editable install or one made with `--target` may have no start-up line, so children get this
folder by PYTHONPATH. It leaves the path as it found it and gives way to the next `sitecustomize`.

Any Python that a child starts comes by here, so this is syntax of the oldest Python 3.
"""

import os
import sys

try:
    from memguard.startup import boot

    boot.begin()
except Exception:
    pass  # another interpreter, without memguard or too old for it: none of ours
finally:
    _own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _own]
    # The next one, if there is one, takes this one's place in `sys.modules`. If there is none,
    # `site` knows the error by its name and passes over it, as ever.
    sys.modules.pop(__name__, None)
    __import__(__name__)
