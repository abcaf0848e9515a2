"""What a prefix cache of N blocks must find of a trace whose requests come one at a time: an offline model of
one worker's pool, block by block, with nothing of the server in it.

Prompts are named by the hash ids of their blocks. A request takes the cached blocks that its prompt begins
with (never the block of its last token, whose logits are wanted), then free ones, then the longest unused.
When it ends, its full blocks stay cached; of a chain, the end is forgotten before the beginning.
"""

import collections


class Misfit(ValueError):
    """A request alone needs more blocks than there are."""


def blocks_of(tokens, block):
    return -(-tokens // block)


class BlockCache:
    """`capacity` blocks of `block` tokens; capacity 0: without limit."""

    def __init__(self, capacity, block=512):
        self.block = block
        self._capacity = capacity
        self._free = capacity if capacity else float("inf")
        self._nodes = {}  # (node before it, hash id) -> node: the content of a block and all before it
        self._keys = {}   # node -> its key, while some block holds it
        self._idle = collections.OrderedDict()  # nodes of cached blocks that nobody uses, oldest first
        self._last = 0

    def _take(self):
        if self._free:
            self._free -= 1
        elif self._idle:
            oldest, _ = self._idle.popitem(last=False)
            del self._nodes[self._keys.pop(oldest)]
        else:
            raise Misfit(f"needs more than {self._capacity} blocks of {self.block} tokens")

    def _enter(self, parent, name):
        """(node, whether the block is the one that is known by it)."""
        key = (parent, name)
        if key in self._nodes:
            return self._nodes[key], False
        self._last += 1
        self._nodes[key] = self._last
        self._keys[self._last] = key
        return self._last, True

    def request(self, input_length, output_length, hash_ids):
        """Runs one request to its end; returns the prompt tokens that were found."""
        node, held = 0, []  # held: the node of each block of the request, None: nobody finds it
        for name in hash_ids[:(input_length - 1) // self.block]:
            found = self._nodes.get((node, name))
            if found is None:
                break
            node = found
            held.append(node)
            del self._idle[node]
        hits = len(held)
        # Room for the prompt and one token is taken at once, the rest as the answer grows.
        while len(held) < blocks_of(input_length + 1, self.block):
            self._take()
            held.append(None)
        for i in range(hits, input_length // self.block):
            node, own = self._enter(node, hash_ids[i])
            held[i] = node if own else None
        written = input_length + output_length - 1  # the last token is never read
        while len(held) < blocks_of(written, self.block):
            self._take()
            held.append(None)
        for i in range(input_length // self.block, written // self.block):
            node, own = self._enter(node, object())  # no other answer is like it
            held[i] = node if own else None
        for known in reversed(held):
            if known is None:
                self._free += 1
            else:
                self._idle[known] = None
        return hits * self.block


def simulate(trace, capacity, block=512):
    """The prompt tokens found of each request of the trace."""
    cache = BlockCache(capacity, block)
    found = []
    for number, request in enumerate(trace, 1):
        try:
            found.append(cache.request(request["input_length"], request["output_length"],
                                       request["hash_ids"]))
        except Misfit as error:
            raise Misfit(f"request {number} {error}") from None
    return found
