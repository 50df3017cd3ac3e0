"""Memory that weights, gradients and optimizer take on each GPU, on paper: the table in docs/guide/scale.md.

Bytes per parameter, in the precision ``bf16-mixed``: 16 where it learns (weight, gradient, and two moments of AdamW, 4
each), 4 where it does not. Under LoRA with ``bf16-true``: 2 for the model, which all copies share, and 16 or 4 for
adapters and heads. Activations, which depend on the batch, come on top.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.row import Row

Q_RANK = 64
LORA_RANK = 16
GPUS = (8, 64)
LEARNS = 16
STAYS = 4
HALF = 2
ALGORITHMS = ("BC", "PPO", "ILQL")


@dataclass(frozen=True)
class Model:
    """The shape of a transformer."""

    name: str
    layers: int
    width: int
    vocabulary: int
    inner: int
    keys: int  # width of all keys of a token
    positions: int = 0  # learned ones
    gated: bool = True  # three matrices in the inner layer, and no biases
    tied: bool = False

    def linear(self) -> list[tuple[int, int]]:
        """Sizes of the matrices in a block."""
        width = self.width
        inner = self.inner
        keys = self.keys
        attention = [(width, width), (width, keys), (width, keys), (width, width)] if self.gated else []
        fused = [] if self.gated else [(width, 3 * width), (width, width)]
        return [*attention, *fused, *[(width, inner)] * (2 if self.gated else 1), (inner, width)]

    def block(self) -> int:
        """Parameters of one block."""
        matrices = sum(rows * columns for rows, columns in self.linear())
        biases = 0 if self.gated else sum(columns for _, columns in self.linear()) + 2 * self.width
        return matrices + biases + 2 * self.width  # two norms

    def trunk(self) -> int:
        """Parameters without a vocabulary head of its own."""
        last = self.width * (1 if self.gated else 2)
        return self.layers * self.block() + (self.vocabulary + self.positions) * self.width + last

    def total(self) -> int:
        """All parameters."""
        return self.trunk() + (0 if self.tied else self.vocabulary * self.width)

    def head(self, out: int, inner: int) -> int:
        """Parameters of a value head."""
        return (self.width + 1) * inner + (inner + 1) * out

    def adapters(self) -> int:
        """Parameters of adapters on all matrices of all blocks."""
        return self.layers * LORA_RANK * sum(rows + columns for rows, columns in self.linear())


MODELS = (
    Model("GPT-2", 12, 768, 50_257, 3_072, 768, 1_024, gated=False, tied=True),
    Model("Llama 3.2 1B", 16, 2_048, 128_256, 8_192, 512, tied=True),
    Model("Llama 3.1 8B", 32, 4_096, 128_256, 14_336, 1_024),
    Model("Llama 3.1 70B", 80, 8_192, 128_256, 28_672, 1_024),
)


def parts(model: Model, algorithm: str) -> tuple[int, int]:
    """Parameters that learn, and others."""
    q = model.head(model.vocabulary, Q_RANK)
    v = model.head(1, model.width)
    if algorithm == "BC":
        return model.total(), 0
    if algorithm == "PPO":
        return model.total() + v, model.total()
    return model.trunk() + 2 * q + v, model.total() + model.trunk() + 2 * q  # pi_beta; target trunk and heads


def whole(model: Model, algorithm: str) -> int:
    """Bytes on a GPU that holds everything."""
    learns, stays = parts(model, algorithm)
    return LEARNS * learns + STAYS * stays


def gathered(model: Model) -> int:
    """Bytes of weights and gradients of two blocks and of what is no block, whole for a moment in each step."""
    return 2 * STAYS * (model.total() - (model.layers - 2) * model.block())


def sharded(model: Model, algorithm: str, gpus: int) -> float:
    """Bytes on each of several GPUs in a step."""
    return whole(model, algorithm) / gpus + gathered(model)


def played(model: Model, algorithm: str, gpus: int) -> float:
    """Bytes on each of several GPUs while the policy plays: its share, and all weights that it plays with."""
    q = model.head(model.vocabulary, Q_RANK)
    v = model.head(1, model.width)
    more = {"BC": 0, "PPO": v, "ILQL": model.trunk() + 2 * q + v}[algorithm]
    return whole(model, algorithm) / gpus + STAYS * (model.total() + more)


def adapted(model: Model, algorithm: str) -> int:
    """Bytes on a GPU that trains adapters."""
    q = model.head(model.vocabulary, Q_RANK)
    v = model.head(1, model.width)
    adapters = model.adapters()
    learns = adapters + {"BC": 0, "PPO": v, "ILQL": 2 * q + v}[algorithm]
    stays = {"BC": 0, "PPO": adapters, "ILQL": adapters + 2 * q}[algorithm]
    return HALF * model.total() + LEARNS * learns + STAYS * stays


def table() -> str:
    """Gigabytes (10**9 bytes), as Markdown."""
    steps = [f"FSDP2, {gpus} GPUs" for gpus in GPUS]
    columns = ["model", "algorithm", "one GPU, or DDP", *steps, f"{steps[0]}, playing", "LoRA, one GPU"]
    rows = [columns, ["---"] * len(columns)]
    for model in MODELS:
        for algorithm in ALGORITHMS:
            found = [whole(model, algorithm), *(sharded(model, algorithm, gpus) for gpus in GPUS)]
            found += [played(model, algorithm, GPUS[0]), adapted(model, algorithm)]
            named = [f"{model.name} ({model.total() / 1e9:.2f} B)", algorithm]
            rows.append(named + [f"{number / 1e9:,.1f}" for number in found])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def run() -> Iterator[Row]:
    """One row per model and algorithm; its number is that of one GPU."""
    for line in table().splitlines()[2:]:
        name, algorithm, *numbers = (cell.strip() for cell in line.strip("|").split("|"))
        one = float(numbers[0].replace(",", ""))
        shown = " / ".join(numbers) + " GB"
        yield Row(f"memory: {name}, {algorithm}", one, "GB", "lower", "on paper", shown=shown)
