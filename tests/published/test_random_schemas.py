"""Random schemas, and replies drawn at random under their masks: every reply must parse and validate, and the judge is
Python's jsonschema. Skipped where that is not installed.

    python3 tests/published/test_random_schemas.py --schemas 10000 --samples 3 --seed 1     prints the counts
"""

import argparse
import collections
import decimal
import json
import random
import sys
import unittest

from test_schemas import JUDGE, Judge

try:
    import jsonschema
except ImportError:
    jsonschema = None

decimal.getcontext().prec = 3000
NAMES = ["a", "b", "name", "tags", "é", 'q"', "x-1"]
PATTERNS = ["^[a-c]{1,4}$", "a", "^x-", "^(?!b)[a-z]+$", "^\\d{2,4}$", "[^a]$", "^(ab|c)*$", "^.{0,3}$"]
FORMATS = ["date", "uuid", "ipv4"]  # jsonschema judges these without further packages
STRINGS = ["", "a", "ab", "abc", "x-1", "12", "é", 'say "a"', "b\\c", "😀"]


class Generator:
    """Schemas of draft 2020-12. Those that nothing matches come out, too: they are refused."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, share):
        return self.random.random() < share

    def pick(self, values):
        return self.random.choice(values)

    def value(self, depth=1):
        kind = self.random.randrange(7 if depth else 5)
        if kind == 0:
            return self.pick([None, True, False])
        if kind == 1:
            return self.random.randint(-30, 30)
        if kind == 2:
            return self.pick([0.5, -2.25, 10.75, 0, 1])
        if kind < 5:
            return self.pick(STRINGS)
        if kind == 5:
            return [self.value(depth - 1) for _ in range(self.random.randrange(3))]
        return {self.pick(NAMES): self.value(depth - 1) for _ in range(self.random.randrange(3))}

    def string(self, out):
        if self.chance(0.4):
            out["minLength"] = self.random.randrange(5)
        if self.chance(0.4):
            out["maxLength"] = out.get("minLength", 0) + self.random.randrange(7)
        if self.chance(0.4):
            out["pattern"] = self.pick(PATTERNS)
        elif self.chance(0.2):
            out["format"] = self.pick(FORMATS)

    def number(self, out):
        low = self.pick([-100, -7, -1, 0, 0.5, 3, 10])
        if self.chance(0.5):
            out[self.pick(["minimum", "exclusiveMinimum"])] = low
        if self.chance(0.5):
            out[self.pick(["maximum", "exclusiveMaximum"])] = low + self.pick([0, 1, 2.5, 10, 1000])
        if self.chance(0.3):
            out["multipleOf"] = self.pick([2, 3, 5, 7, 0.5, 0.25, 10])

    def array(self, out, depth):
        if self.chance(0.3):
            out["prefixItems"] = [self.schema(depth - 1) for _ in range(self.random.randrange(1, 4))]
        if self.chance(0.6):
            out["items"] = self.schema(depth - 1)
        if self.chance(0.25):
            out["contains"] = self.schema(depth - 1)
            if self.chance(0.4):
                out[self.pick(["minContains", "maxContains"])] = self.random.randrange(1, 3)
        if self.chance(0.3):
            out["minItems"] = self.random.randrange(4)
        if self.chance(0.5):
            out["maxItems"] = out.get("minItems", 0) + self.random.randrange(4)
        if self.chance(0.05) and "contains" not in out:
            out["unevaluatedItems"] = False

    def object(self, out, depth):
        names = self.random.sample(NAMES, self.random.randrange(5))
        if names:
            out["properties"] = {name: self.schema(depth - 1) for name in names}
        if self.chance(0.6):
            out["required"] = self.random.sample(NAMES, self.random.randrange(3))
        if self.chance(0.2):
            out["patternProperties"] = {self.pick(["^a", "^x-", "e$"]): self.schema(depth - 1)}
        if self.chance(0.35):
            out["additionalProperties"] = self.pick([False, False, True, self.schema(depth - 1)])
        if self.chance(0.15):
            out["propertyNames"] = self.pick([{"maxLength": 4}, {"pattern": "^[a-z]"}, {"enum": NAMES[:4]}])
        if self.chance(0.15):
            out["minProperties"] = self.random.randrange(4)
        if self.chance(0.15):
            out["maxProperties"] = out.get("minProperties", 0) + self.random.randrange(4)
        if self.chance(0.1):
            out["dependentRequired"] = {self.pick(NAMES): self.random.sample(NAMES, 2)}
        if self.chance(0.1):
            out["dependentSchemas"] = {self.pick(NAMES): self.schema(depth - 1)}
        if self.chance(0.05):
            out["unevaluatedProperties"] = False

    def combine(self, out, depth):
        kind = self.pick(["allOf", "anyOf", "oneOf", "not", "if"])
        if kind == "not":
            out["not"] = self.schema(depth - 1)
        elif kind == "if":
            for name in ["if", "then", "else"]:
                if name == "if" or self.chance(0.7):
                    out[name] = self.schema(depth - 1)
        else:
            out[kind] = [self.schema(depth - 1) for _ in range(self.random.randrange(1, 4))]

    def schema(self, depth):
        if depth <= 0 and self.chance(0.3):
            return self.pick([True, {}, {"type": "null"}, {"$ref": "#/$defs/leaf"}])
        if self.chance(0.1):
            return {"$ref": "#/$defs/" + self.pick(["leaf", "node"])}
        if self.chance(0.1):
            return {"enum": [self.value() for _ in range(self.random.randrange(1, 5))]}
        if self.chance(0.05):
            return {"const": self.value()}
        out = {}
        kinds = ["string", "integer", "number", "boolean", "null"] + (["array", "object"] * 3 if depth > 0 else [])
        if self.chance(0.85):
            kind = self.pick(kinds)
            out["type"] = kind if self.chance(0.85) else sorted({kind, self.pick(kinds)})
        of = out.get("type", self.pick(kinds))
        for kind in of if isinstance(of, list) else [of]:
            if kind == "string":
                self.string(out)
            elif kind in ("integer", "number"):
                self.number(out)
            elif kind == "array":
                self.array(out, depth)
            elif kind == "object":
                self.object(out, depth)
        if depth > 0 and self.chance(0.25):
            self.combine(out, depth)
        return out

    def document(self):
        out = self.schema(self.random.randrange(1, 4))
        if not isinstance(out, dict):
            out = {"anyOf": [out]}
        out["$schema"] = "https://json-schema.org/draft/2020-12/schema"
        out["$defs"] = {
            "leaf": self.schema(0),
            "node": {
                "type": "object",
                "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
                "required": ["v"],
                "additionalProperties": False,
            },
        }
        return out


def exact(text):
    """Numbers to the last digit: a float would be rounded before it is judged."""
    number = decimal.Decimal(text)
    if abs(number.adjusted()) < 1000 and number == number.to_integral_value():
        return int(number)
    return number


def read(text):
    return json.loads(text, parse_float=exact)


def check(judge, document, samples, seed, counts):
    closed = seed % 2 == 0
    compiled = judge.ask("C" if closed else "O", document)
    if compiled["error"] or compiled["unenforced"]:
        counts["refused"] += 1
        return
    counts["schemas"] += 1
    validator = jsonschema.Draft202012Validator(
        read(json.dumps(document)), format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    for sample in range(samples):
        drawn = judge.ask("S", seed * 1000 + sample)
        if drawn["stuck"]:
            counts["stuck"] += 1
            print(f"stuck after {drawn['text']!r}: {json.dumps(document)}")
        elif not drawn["ended"]:
            counts["endless"] += 1
        else:
            counts["replies"] += 1
            try:
                errors = [error.message for error in validator.iter_errors(read(drawn["text"]))]
            except (ValueError, RecursionError) as error:
                errors = [str(error)]
            if errors:
                counts["invalid"] += 1
                print(f"invalid: {drawn['text']}: {errors[0][:200]}: {json.dumps(document)}")


def run(schemas, samples, seed):
    judge = Judge()
    counts = collections.Counter()
    for index in range(schemas):
        check(judge, Generator(f"{seed}:{index}").document(), samples, index, counts)
    judge.close()
    print(dict(counts))
    return counts


@unittest.skipUnless(jsonschema and JUDGE.is_file(), "jsonschema or the judge is not there")
class RandomSchemas(unittest.TestCase):
    def test_every_reply_validates(self):
        counts = run(schemas=400, samples=2, seed=7)
        self.assertEqual(counts["invalid"] + counts["stuck"], 0)
        self.assertGreater(counts["replies"], 400)


if __name__ == "__main__":
    if jsonschema is None:
        print("skipped: jsonschema is not installed", file=sys.stderr)
        sys.exit(77)
    parser = argparse.ArgumentParser()
    parser.add_argument("--schemas", type=int, default=0, help="instead of the test: so many schemas")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--seed", default="1")
    arguments, rest = parser.parse_known_args()
    if arguments.schemas == 0:
        unittest.main(argv=[sys.argv[0], *rest])
    found = run(arguments.schemas, arguments.samples, arguments.seed)
    sys.exit(1 if found["invalid"] + found["stuck"] > 0 else 0)
