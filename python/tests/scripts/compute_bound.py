"""A recipe whose data lies in memory: the model is what takes the time."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--save", default=None)
    parser.add_argument("--width", type=int, default=1536)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, args.width), nn.ReLU(), nn.Linear(args.width, args.width), nn.ReLU())
    model.append(nn.Linear(args.width, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train = TensorDataset(torch.randn(128 * args.steps, 256), torch.randint(0, 10, (128 * args.steps,)))
    loader = DataLoader(train, batch_size=128, shuffle=True)
    held_out = DataLoader(TensorDataset(*train[:512]), batch_size=128)
    losses = []
    for epoch in range(args.epochs):
        model.train()
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if args.save:
            torch.save(model.state_dict(), args.save)
        if args.evaluate:
            model.eval()
            with torch.no_grad():
                for inputs, targets in held_out:
                    model(inputs)
    print(f"loss {losses[0]:.6f} {losses[-1]:.6f}")


if __name__ == "__main__":
    main()
