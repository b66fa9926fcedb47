"""blend.py OUT.pt CHECKPOINT.pt FOLDER SHARE: the mean of a checkpoint and of the exported model that it was trained further from, with SHARE of the latter.
What was learnt anew stays, and what was lost on the way comes back."""
import sys, torch
from export import exported

out, new, old, share = sys.argv[1:]; share = float(share); s = torch.load(new); before = exported(old)
assert before.keys() == s["state"].keys()
torch.save(dict(preset=s["preset"], V=s["V"], state={k: (1 - share) * v.float() + share * before[k] for k, v in s["state"].items()}), out)
