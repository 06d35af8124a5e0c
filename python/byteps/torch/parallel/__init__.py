"""Models that average their own gradients: any optimizer then does, unwrapped."""

from byteps.torch.parallel.distributed import DistributedDataParallel
from byteps.torch.sync_batch_norm import convert_syncbn_model

__all__ = ["DistributedDataParallel", "convert_syncbn_model"]
