"""What sharding leaves on one rank, stage by stage; pure arithmetic."""

from __future__ import annotations

from memguard.ledgers import Stage


def shard(
    parameters: int, gradients: int, optimizer: int, *, ranks: int, stage: int, rest: int = 0
) -> Stage:
    """Bytes on one rank of `ranks` at a ZeRO stage.

    Stage 1 shards the optimizer's states, 2 the gradients too (FSDP's SHARD_GRAD_OP), 3 the
    parameters too (FSDP's FULL_SHARD); Rajbhandari et al., "ZeRO: Memory Optimizations Toward
    Training Trillion Parameter Models", 2020, section 3. What a rank gathers for a moment (one
    block's parameters at stage 3) and buckets for communication come on top.

    Args:
        parameters: bytes of all parameters.
        gradients: bytes of all gradients.
        optimizer: bytes of all states, master weights among them.
        ranks: ranks that share them.
        stage: 0 to 3.
        rest: bytes that no stage shards: buffers, activations.
    """

    def part(size: int, first: int) -> int:
        # The last rank's shard is padded to the size of the others'.
        return -(-size // ranks) if stage >= first else size

    kept = part(parameters, 3), part(gradients, 2), part(optimizer, 1)
    whole = parameters + gradients + optimizer
    return Stage(stage, *kept, sum(kept) + rest, whole - sum(kept))
