"""The parameters of four models: names and shapes as their usual implementations have them (torchvision, Hugging Face
transformers), without the models. In the order of the forward pass; gradients come in the opposite order."""

import math

DDP_FIRST_BUCKET = 1 << 20  # torch's DistributedDataParallel: bytes of its first bucket, and of the others
DDP_BUCKET = 25 << 20


def _linear(name, inputs, outputs):
    return [(f"{name}.weight", (outputs, inputs)), (f"{name}.bias", (outputs,))]


def _norm(name, width):
    return [(f"{name}.weight", (width,)), (f"{name}.bias", (width,))]


def resnet50():
    def convolution(name, inputs, outputs, kernel):
        return [(f"{name}.weight", (outputs, inputs, kernel, kernel))]

    found = convolution("conv1", 3, 64, 7) + _norm("bn1", 64)
    inputs = 64
    for layer, (blocks, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], 1):
        for block in range(blocks):
            name = f"layer{layer}.{block}"
            found += convolution(f"{name}.conv1", inputs, width, 1) + _norm(f"{name}.bn1", width)
            found += convolution(f"{name}.conv2", width, width, 3) + _norm(f"{name}.bn2", width)
            found += convolution(f"{name}.conv3", width, 4 * width, 1) + _norm(f"{name}.bn3", 4 * width)
            if block == 0:
                found += convolution(f"{name}.downsample.0", inputs, 4 * width, 1)
                found += _norm(f"{name}.downsample.1", 4 * width)
            inputs = 4 * width
    return found + _linear("fc", 2048, 1000)


def vgg16():
    found, inputs, index = [], 3, 0
    for outputs in (64, 64, None, 128, 128, None, 256, 256, 256, None, 512, 512, 512, None, 512, 512, 512, None):
        if outputs is None:  # a pooling layer has no parameters
            index += 1
            continue
        found += [(f"features.{index}.weight", (outputs, inputs, 3, 3)), (f"features.{index}.bias", (outputs,))]
        inputs, index = outputs, index + 2
    for place, (wide, narrow) in zip((0, 3, 6), [(512 * 7 * 7, 4096), (4096, 4096), (4096, 1000)]):
        found += _linear(f"classifier.{place}", wide, narrow)
    return found


def bert_large():
    """BertModel, uncased, with its pooler."""
    hidden, inner = 1024, 4096
    found = [
        ("embeddings.word_embeddings.weight", (30522, hidden)),
        ("embeddings.position_embeddings.weight", (512, hidden)),
        ("embeddings.token_type_embeddings.weight", (2, hidden)),
    ] + _norm("embeddings.LayerNorm", hidden)
    for layer in range(24):
        name = f"encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            found += _linear(f"{name}.attention.{part}", hidden, hidden)
        found += _norm(f"{name}.attention.output.LayerNorm", hidden)
        found += _linear(f"{name}.intermediate.dense", hidden, inner)
        found += _linear(f"{name}.output.dense", inner, hidden) + _norm(f"{name}.output.LayerNorm", hidden)
    return found + _linear("pooler.dense", hidden, hidden)


def gpt2_medium():
    def conv1d(name, inputs, outputs):  # GPT-2 keeps its matrices the other way round
        return [(f"{name}.weight", (inputs, outputs)), (f"{name}.bias", (outputs,))]

    hidden = 1024
    found = [("wte.weight", (50257, hidden)), ("wpe.weight", (1024, hidden))]
    for layer in range(24):
        name = f"h.{layer}"
        found += _norm(f"{name}.ln_1", hidden) + conv1d(f"{name}.attn.c_attn", hidden, 3 * hidden)
        found += conv1d(f"{name}.attn.c_proj", hidden, hidden) + _norm(f"{name}.ln_2", hidden)
        found += conv1d(f"{name}.mlp.c_fc", hidden, 4 * hidden) + conv1d(f"{name}.mlp.c_proj", 4 * hidden, hidden)
    return found + _norm("ln_f", hidden)


MODELS = {"resnet50": resnet50, "vgg16": vgg16, "bert_large": bert_large, "gpt2_medium": gpt2_medium}


def parameter_count(model):
    return sum(math.prod(shape) for _, shape in MODELS[model]())


def write_list(model, path):
    """For push_pull_worker --list: NAME ELEMENTS, the first layer first."""
    lines = [f"{name} {math.prod(shape)}\n" for name, shape in MODELS[model]()]
    fresh = path.with_suffix(".new")
    fresh.write_text("".join(lines), encoding="ascii")
    fresh.replace(path)  # a worker that was started before may be reading it


def ddp_buckets(sizes):
    """DistributedDataParallel's buckets of gradients that come in this order: [(index of the last one, bytes)]."""
    buckets, held, room = [], 0, DDP_FIRST_BUCKET
    for index, size in enumerate(sizes):
        held += size
        if held >= room or index == len(sizes) - 1:
            buckets.append((index, held))
            held, room = 0, DDP_BUCKET
    return buckets


def bucket_bytes(model):
    """Of the model's buckets."""
    return [size for _, size in ddp_buckets([4 * math.prod(shape) for _, shape in reversed(MODELS[model]())])]
