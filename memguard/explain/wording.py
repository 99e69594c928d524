"""What a place is called in a report."""

from __future__ import annotations

from memguard.explain.places import Place


def name_of(place: Place) -> str:
    """What the user typed: `total_loss`, `self.history`, `cache`."""
    if place.kind in ("ctx", "cycle", "hook"):
        return place.expression if place.kind != "hook" else place.name
    if place.container == "Tensor" and place.path.startswith("["):
        return f"{place.expression}{place.path}"  # a sum that is an entry of a dict
    return place.expression or place.name


def where_of(place: Place) -> str:
    """Where that lives: `local of train_epoch`, `attribute of Trainer`."""
    function = place.function or "<module>"
    module = "this script" if place.module in (None, "__main__") else place.module
    words = {
        "local": f"local of {function}",
        "global": f"global of {module}",
        "attribute": f"attribute of {place.owner}",
        "buffer": f"buffer of {place.owner}",
        "class": f"class attribute of {place.owner}",
        "closure": f"variable captured by {function}",
        "default": f"default argument of {function}",
        "hook": f"hook {function}, registered on {place.owner} again and again",
        "cache": f"cache of {function}",
        "ctx": f"ctx of {place.owner}",
        "cycle": f"reference cycle through {place.owner}",
    }
    return words[place.kind]
