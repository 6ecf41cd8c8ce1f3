"""PyTorch: ten steps of a plain training with batches of `tokenmill.loader`, whose losses are those by hand."""

import sys

import torch
from masks import Case, tiny_model

import tokenmill
from tokenmill.training.torch import TokenDataLoader

STEPS, BATCH, WINDOW, GRAIN = 10, 4, 64, 256


def main() -> None:
    """Train, and compare each batch with the rows of the stream that transformers' tokens and the segments make."""
    case = Case()
    stream = [pair for ids, mask in case.rows().items() for pair in zip(ids, mask, strict=True)]
    ids, mask = torch.tensor([token for token, _ in stream]), torch.tensor([trained for _, trained in stream])
    starts = range(0, len(ids) - WINDOW, WINDOW)
    places = {tuple(ids[start : start + WINDOW].tolist()): start for start in starts}
    model, losses = tiny_model(), list[float]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = tokenmill.loader(case.store, sequence_tokens=WINDOW, batch_sequences=BATCH, grain=GRAIN, seed=1)
    for _, batch in zip(range(STEPS), TokenDataLoader(loader, num_workers=0), strict=False):
        logits = model(input_ids=batch["input_ids"]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
        nexts = [places[tuple(row)] + 1 for row in batch["input_ids"].tolist()]
        own, trained = (torch.stack([one[start : start + WINDOW] for start in nexts]) for one in (ids, mask))
        each = logits.detach().log_softmax(-1).gather(-1, own[..., None])[..., 0]
        losses.append(float(loss))
        case.same_loss(losses[-1], float(-each[trained].mean()))
        case.require(torch.equal(batch["labels"] != -100, trained), "labels of a batch are not of its segments")
        case.require(torch.equal(batch["labels"][trained], own[trained]), "labels of a batch are other tokens")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    case.require(len(losses) == STEPS, f"{len(losses)} steps were trained")
    told = f"losses {losses[0]:.3f} to {losses[-1]:.3f} equal to those by hand"
    read = f"tokenmill.loader: {STEPS} steps of a tiny model, {told}"
    case.report("torch", read, len(case.documents), STEPS * BATCH * WINDOW)


if __name__ == "__main__":
    sys.exit(main())
