"""What the original has beside the layers: byteps.misc.imagenet18."""
