"""A character-level language model that learns to write Python from the standard library.

The recurrent state is carried from batch to batch, so the network reads on where it stopped, but
nothing cuts it off from the batches before: every step's graph hangs on the one before, memory
grows and each step takes longer than the last. `char_rnn.py` is the same program, repaired.

    python examples/char_rnn_leaky.py
    memguard run examples/char_rnn_leaky.py
"""

import sysconfig
from pathlib import Path

import torch
from torch import nn

STEPS = 300
BATCH_SIZE = 16
SEQUENCE_LENGTH = 24
HIDDEN_SIZE = 96
LEARNING_RATE = 0.5
CORPUS_SIZE = 400_000


def load_corpus():
    """The text of the standard library's own modules, as many as are needed."""
    text = ""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_text(encoding="utf-8", errors="ignore")
        if len(text) >= CORPUS_SIZE:
            break
    return text[:CORPUS_SIZE]


class CharRNN(nn.Module):
    """One recurrent layer between an embedding of characters and a guess at the next one."""

    def __init__(self, vocabulary_size):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, 48)
        self.gru = nn.GRU(48, HIDDEN_SIZE, batch_first=True)
        self.decoder = nn.Linear(HIDDEN_SIZE, vocabulary_size)

    def forward(self, characters, state):
        output, state = self.gru(self.embedding(characters), state)
        return self.decoder(output), state


def batches(encoded):
    """Inputs and targets, each row of a batch going on where it stopped in the batch before."""
    rows = encoded[: len(encoded) // BATCH_SIZE * BATCH_SIZE].view(BATCH_SIZE, -1)
    for start in range(0, rows.shape[1] - SEQUENCE_LENGTH, SEQUENCE_LENGTH):
        window = rows[:, start : start + SEQUENCE_LENGTH + 1]
        yield window[:, :-1], window[:, 1:]


def train(model, encoded):
    """Plain gradient descent, written out as the update rule."""
    criterion = nn.CrossEntropyLoss()
    state = torch.zeros(1, BATCH_SIZE, HIDDEN_SIZE)
    running_loss = 0.0
    for step, (inputs, targets) in enumerate(batches(encoded), start=1):
        logits, state = model(inputs, state)
        loss = criterion(logits.flatten(0, 1), targets.flatten())

        model.zero_grad()
        loss.backward(retain_graph=True)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-LEARNING_RATE)

        running_loss += loss.item()
        if step % 50 == 0:
            print(f"step {step:4}  loss {running_loss / 50:.3f}", flush=True)
            running_loss = 0.0
        if step == STEPS:
            break


@torch.no_grad()
def write(model, vocabulary, prompt="def ", length=120):
    """Let the model go on from a prompt, one sampled character at a time."""
    state = torch.zeros(1, 1, HIDDEN_SIZE)
    text = prompt
    pending = prompt
    for _ in range(length):
        characters = torch.tensor([[vocabulary.index(character) for character in pending]])
        logits, state = model(characters, state)
        chances = torch.softmax(logits[0, -1] / 0.7, dim=0)
        pending = vocabulary[torch.multinomial(chances, 1).item()]
        text += pending
    return text


def main():
    torch.manual_seed(0)
    corpus = load_corpus()
    vocabulary = sorted(set(corpus))
    position = {character: number for number, character in enumerate(vocabulary)}
    encoded = torch.tensor([position[character] for character in corpus])
    model = CharRNN(len(vocabulary))
    train(model, encoded)
    print(write(model, vocabulary))


if __name__ == "__main__":
    main()
