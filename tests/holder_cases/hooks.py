"""Hooks of every sort, registered again and again or storing what they see."""

from __future__ import annotations

from programs import IN_CPP

from holder_cases import Case

_REGISTERED = ("remove()",)


def _each_step(registration: str, chain: tuple[str, ...], where: str, stays: str = "") -> Case:
    """A hook that a closure makes anew each step, around that step's loss."""
    return Case(
        "tap",
        (*chain, "closes over loss: Tensor"),
        _REGISTERED,
        f"""
        def make(loss):
            def tap(*args):
                loss
            return tap
        for _ in range(40):
            loss = train_step(model, optimizer)
            {registration}  # grows
        """,
        where=where,
        stays=stays,
    )


CASES = {
    "forward hook": _each_step(
        "model.first.register_forward_hook(make(loss))",
        ("global model: Net", ".first: Linear", "._forward_hooks: OrderedDict of"),
        "hook make.<locals>.tap (train.py:",
    ),
    "forward pre-hook": _each_step(
        "model.first.register_forward_pre_hook(make(loss))",
        ("global model: Net", ".first: Linear", "._forward_pre_hooks: OrderedDict of"),
        "hook make.<locals>.tap (train.py:",
    ),
    "module backward hook": _each_step(
        "model.second.register_full_backward_hook(make(loss))",
        ("global model: Net", ".second: Linear", "._backward_hooks: OrderedDict of"),
        "on Linear",
        IN_CPP,
    ),
    "module backward pre-hook": _each_step(
        "model.second.register_full_backward_pre_hook(make(loss))",
        ("global model: Net", ".second: Linear", "._backward_pre_hooks: OrderedDict of"),
        "on Linear",
        IN_CPP,
    ),
    "parameter hook": _each_step(
        "model.first.weight.register_hook(make(loss))",
        ("global model: Net", ".first: Linear", ".weight: Parameter", "._backward_hooks"),
        "on Parameter",
        IN_CPP,
    ),
    "post-accumulate hook": _each_step(
        "model.first.weight.register_post_accumulate_grad_hook(make(loss))",
        (".weight: Parameter", "._post_accumulate_grad_hooks: OrderedDict of"),
        "on Parameter",
        IN_CPP,
    ),
    "global module hook": _each_step(
        "nn.modules.module.register_module_forward_hook(make(loss))",
        ("module torch.nn.modules.module", "global _global_forward_hooks: OrderedDict of"),
        "on every module",
    ),
    "optimizer hook": _each_step(
        "optimizer.register_step_post_hook(make(loss))",
        ("global optimizer: SGD", "._optimizer_step_post_hooks: OrderedDict of"),
        "on SGD",
    ),
    "state dict hook": _each_step(
        "model.register_state_dict_post_hook(make(loss))",
        ("global model: Net", "._state_dict_hooks: OrderedDict of"),
        "on Net",
    ),
    "hook on a gradient accumulator": Case(
        "tap",
        ("hooks of a tensor or node, held by C++", "closes over loss: Tensor"),
        _REGISTERED,
        """
        def make(loss):
            def tap(*args):
                loss
            return tap
        weight = model.first.weight
        accumulator = weight.expand_as(weight).grad_fn.next_functions[0][0]
        for _ in range(40):
            loss = train_step(model, optimizer)
            accumulator.register_hook(make(loss))  # grows
        """,
        where="hook make.<locals>.tap (train.py:",
        stays=IN_CPP,
    ),
    "hook on a grad_fn that is bound to the cache's owner": Case(
        "clear",
        ("hooks of a tensor or node, held by C++", ".__self__: Cache", ".out: Tensor"),
        ("weakref",),
        """
        class Cache:
            def __init__(self, out):
                self.out = out
                out.grad_fn.register_hook(self.clear)  # grows
            def clear(self, *args):
                return None
        for _ in range(40):
            x, y = batch()
            out = model(x)
            Cache(out)
            loss = (out - y).pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        """,
        where="hook Cache.clear (train.py:",
        stays=IN_CPP,
    ),
    "hook on the tensor it closes over": Case(
        "keep",
        ("hooks of a tensor or node, held by C++", "closes over out: Tensor"),
        ("weakref", "remove()"),
        """
        def watch_gradient(out):
            def keep(gradient):
                return gradient * out.detach()
            out.register_hook(keep)  # grows
        for _ in range(40):
            x, y = batch()
            out = model(x)
            watch_gradient(out)
            loss = (out - y).pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        """,
        where="hook watch_gradient.<locals>.keep (train.py:",
        stays=IN_CPP,
    ),
    "forward hook that stores outputs": Case(
        "activations",
        ("global activations: list",),
        ("activations.append(output.detach())",),
        """
        activations = []
        def store(module, inputs, output):
            activations.append(output)  # grows
        model.first.register_forward_hook(store)
        for _ in range(40):
            train_step(model, optimizer)
        """,
    ),
    "hook object that stores outputs": Case(
        "model.first._forward_hooks[...].kept",
        ("global model: Net", "._forward_hooks", ".kept: list"),
        ("self.kept.append(output.detach())",),
        """
        class Recorder:
            def __init__(self):
                self.kept = []
            def __call__(self, module, inputs, output):
                self.kept.append(output)  # grows
        model.first.register_forward_hook(Recorder())
        for _ in range(40):
            train_step(model, optimizer)
        """,
    ),
}
