"""What the programs say of themselves with --help, as tables: manual pages and completions are made from these."""

import re
from dataclasses import dataclass, field


@dataclass
class Option:
    flag: str  # "--worker.device", "-h,--help"
    value: str = ""  # "FILE"; empty for a switch, or where the text names none
    meaning: str = ""
    choices: list = field(default_factory=list)

    @property
    def long(self):
        return self.flag.split(",")[-1]


def words_of(bounds):
    """"a, b or c" and "one or more of a,b" as a list; ranges and free text as none."""
    if bounds == "true or false":
        return ["true", "false"]
    listed = re.fullmatch(r"one or more of ([a-z0-9_,.]+)", bounds)
    if listed:
        return listed.group(1).split(",")
    words = re.split(r", | or ", bounds)
    return words if len(words) > 1 and all(re.fullmatch(r"[a-z][a-z0-9_.]*", word) for word in words) else []


def sections(text):
    """Help of the option table: [(heading, [Option])]; the first heading is empty."""
    found = [("", [])]
    for line in text.splitlines():
        if re.match(r"[A-Z].*:$", line):
            found.append((line[:-1], []))
        elif re.match(r"  \S", line):
            flag, _, value = line.strip().partition(" ")
            found[-1][1].append(Option(flag, value))
        elif line.startswith("      ") and found[-1][1]:
            option = found[-1][1][-1]
            option.meaning += ("\n" if option.meaning else "") + line.strip()
            bounds = re.search(r"(?:.*)\((?:default .*?|no default|required); (.*)\)$", line)
            if bounds:
                option.choices = words_of(bounds.group(1))
    return [(heading, options) for heading, options in found if options]


def columns(text):
    """Help in two columns, as CLI11 and the launcher write it: [Option]; a line further in goes on."""
    found = []
    for line in text.splitlines():
        begun = re.match(r"\s{2,}(-[^\s]+(?:, --[^\s]+)*)(?: (\S.*?))?(?:\s{2,}(.*))?$", line)
        if begun:
            flag, value, meaning = (part or "" for part in begun.groups())
            kind = re.match(r"[A-Z]+(?::(\{[^}]*\}|\S+ in \[[^]]*\]))?", value)
            option = Option(flag.rstrip(","), value, meaning)
            choices = re.search(r"\{([^}]*)\}", value)
            if choices:
                option.choices = choices.group(1).split(",")
            if kind and kind.group(0) in ("TEXT", "FLOAT", "UINT", "INT") and not choices:
                option.value = kind.group(0)
            found.append(option)
        elif re.match(r"\s{10,}\S", line) and found:
            found[-1].meaning = (found[-1].meaning + " " + line.strip()).strip()
        elif line.strip():
            if found and not line.startswith(" "):
                found.append(None)  # what follows belongs to something else
    return [option for option in found if option]


def commands(text):
    """The launcher's list of commands: [(name, meaning)]."""
    found = []
    for line in text.splitlines():
        begun = re.match(r"  ([a-z][a-z, -]*?) {2,}(\S.*)$", line)
        if begun:
            found.append((begun.group(1), begun.group(2)))
        elif re.fullmatch(r"  [a-z-]+(, --?[a-z-]+)*", line):
            found.append((line.strip(), ""))
    return found


def admin_commands(text):
    """What `baton-ctl help` lists: [(synopsis, meaning)]."""
    found = []
    for line in text.splitlines():
        begun = re.match(r"([a-z]\S*(?: \S+)*)(?:\s{2,}(.*))?$", line)
        if begun:
            found.append([begun.group(1), begun.group(2) or ""])
        elif line.startswith("          ") and found:
            found[-1][1] = (found[-1][1] + " " + line.strip()).strip()
    return [tuple(each) for each in found]


def word_tree(synopses):
    """The words that may follow one another: {"show": {"info": {}, ...}}. Words in capitals are anybody's."""
    tree = {}
    for synopsis in synopses:
        ends = [tree]
        for word in re.sub(r"\[--.*?\]", "", synopsis).split():
            following = []
            for choice in word.strip("[]").split("|"):
                name = "" if choice.isupper() or ":" in choice or "-" in choice or "SECONDS" in choice else choice
                for end in ends:
                    following.append(end.setdefault(name, {}))
            ends = following
    return tree
