"""Completions for bash, zsh and fish, from what the programs say with --help."""

import re

import help_tables

PLACES = {"--config": "file", "--model": "folder", "--run_dir": "folder", "--run-dir": "folder", "--socket": "file",
          "--memory-socket": "file"}


class Tables:
    def __init__(self, usage, serve, upgrade, scheduler, ctl, ctl_commands):
        self.commands = {}
        for names, meaning in help_tables.commands(usage):
            for name in names.split(", "):
                self.commands[name] = re.split(r"[:,;(]", meaning)[0]
        table = {option.long: option for option in help_tables.columns(serve) if re.fullmatch(r"--[a-z_.]+", option.long)}
        for heading, options in help_tables.sections(scheduler):
            if heading.startswith(("Options of all", "Section ")):
                table.update({option.long: option for option in options if option.long.startswith("--")})
        # The short names that `serve` takes.
        for short, long in (("--host", "--frontend.host"), ("--port", "--frontend.port"), ("--device", "--worker.device")):
            table.setdefault(short, table[long])
        self.serve = table
        self.upgrade = {option.long: option for option in help_tables.columns(upgrade)}
        self.ctl = {option.long: option for option in help_tables.columns(ctl)}
        self.words = help_tables.word_tree([synopsis for synopsis, meaning in help_tables.admin_commands(ctl_commands)
                                            if meaning])

    def paths(self, tree=None, before=()):
        """[(words so far, words that may follow)]; "*" stands for anybody's word."""
        tree = self.words if tree is None else tree
        named = [word for word in tree if word]
        found = [(before, named)] if named else []
        for word, below in tree.items():
            found += self.paths(below, (*before, word or "*"))
        return found


def short(meaning):
    """One line without what the shells' own quoting minds."""
    text = re.sub(r"\s*\((?:default|no default|required).*", "", meaning.splitlines()[0] if meaning else "")
    return re.sub(r"[^\w ,.;/+%-]", "", text)[:70].strip()


def values_case(options, indent):
    out = []
    for flag, option in sorted(options.items()):
        place = PLACES.get(flag)
        if place:
            out.append(f'{indent}{flag}) COMPREPLY=($(compgen -{"d" if place == "folder" else "f"} -- "$word")) && return ;;')
        elif option.choices:
            out.append(f'{indent}{flag}) COMPREPLY=($(compgen -W "{" ".join(option.choices)}" -- "$word")) && return ;;')
    return "\n".join(out)


def bash(tables):
    cases = "\n".join(f'    "{" ".join(before)}") words="{" ".join(words)}" ;;' if "*" not in before else
                      f'    {" ".join(before).replace(" ", chr(92) + " ")}) words="{" ".join(words)}" ;;'
                      for before, words in sorted(tables.paths(), key=lambda path: -len(path[0])))
    return f"""# Completion of baton and baton-ctl for bash. Made by `./baton package` from the programs' own help.
# shellcheck shell=bash disable=SC2207
_baton_ctl() {{ # the place of the first word that may be a command
  local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} before='' words='' i=$1
  case $previous in
{values_case(tables.ctl, "    ")}
  esac
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "{" ".join(sorted(tables.ctl))}" -- "$word"))
    return
  fi
  for ((; i < COMP_CWORD; i++)); do
    case ${{COMP_WORDS[i]}} in
      {"|".join(sorted(flag for flag, option in tables.ctl.items() if option.value))}) ((i++)) ;;
      -*) ;;
      *) before="$before${{before:+ }}${{COMP_WORDS[i]}}" ;;
    esac
  done
  case $before in
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
_baton_ctl_alone() {{ _baton_ctl 1; }}
_baton() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}}
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W "{" ".join(tables.commands)}" -- "$word"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
    ctl) _baton_ctl 2 ;;
    serve)
      case $previous in
{values_case(tables.serve, "        ")}
      esac
      COMPREPLY=($(compgen -W "{" ".join(sorted(tables.serve))}" -- "$word"))
      ;;
    upgrade)
      case $previous in
{values_case(tables.upgrade, "        ")}
      esac
      COMPREPLY=($(compgen -W "{" ".join(sorted(tables.upgrade))}" -- "$word"))
      ;;
  esac
}}
complete -F _baton baton
complete -F _baton_ctl_alone baton-ctl
"""


def zsh_options(options):
    out = []
    for flag, option in sorted(options.items()):
        place = PLACES.get(flag)
        after = {"folder": ":folder:_files -/", "file": ":file:_files"}.get(place, "")
        if not after and option.choices:
            after = f":value:({' '.join(option.choices)})"
        elif not after and (option.value or "default" in option.meaning):
            after = ":value:"
        out.append(f"    '{flag}[{short(option.meaning)}]{after}'")
    return " \\\n".join(out)


def zsh(tables):
    described = " ".join(f"'{name}:{short(meaning)}'" for name, meaning in tables.commands.items() if not name.startswith("-"))
    cases = "\n".join(f"    {(' '.join(before)).replace(' ', chr(92) + ' ') or chr(39) * 2}) following=({' '.join(words)}) ;;"
                      for before, words in sorted(tables.paths(), key=lambda path: -len(path[0])))
    return f"""#compdef baton baton-ctl
# Made by `./baton package` from the programs' own help.
_baton_ctl_words() {{
  local -a following given
  given=(${{line[1,-2]}})
  case "${{(j: :)given}}" in
{cases}
  esac
  compadd -- $following
}}
_baton_ctl() {{
  local -a line
  _arguments -C \\
{zsh_options(tables.ctl)} \\
    '*:command:_baton_ctl_words'
}}
_baton_serve() {{
  _arguments \\
{zsh_options(tables.serve)}
}}
_baton_upgrade() {{
  _arguments \\
{zsh_options(tables.upgrade)}
}}
_baton() {{
  local -a commands
  if [[ $service == baton-ctl ]]; then
    _baton_ctl
    return
  fi
  if ((CURRENT == 2)); then
    commands=({described})
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  ((CURRENT--))
  case $command in
    ctl) _baton_ctl ;;
    serve) _baton_serve ;;
    upgrade) _baton_upgrade ;;
  esac
}}
_baton "$@"
"""


def fish(tables):
    out = ["# Completion of baton and baton-ctl for fish. Made by `./baton package` from the programs' own help.",
           "complete -c baton -f", "complete -c baton-ctl -f"]
    for name, meaning in tables.commands.items():
        if not name.startswith("-"):
            out.append(f"complete -c baton -n __fish_use_subcommand -a {name} -d '{short(meaning)}'")

    def options(table, program, condition):
        for flag, option in sorted(table.items()):
            place = PLACES.get(flag)
            more = " -r -F" if place else f" -x -a '{' '.join(option.choices)}'" if option.choices else \
                " -x" if option.value or "default" in option.meaning else ""
            out.append(f"complete -c {program}{condition} -l {flag[2:]}{more} -d '{short(option.meaning)}'")

    options(tables.serve, "baton", " -n '__fish_seen_subcommand_from serve'")
    options(tables.upgrade, "baton", " -n '__fish_seen_subcommand_from upgrade'")
    options(tables.ctl, "baton", " -n '__fish_seen_subcommand_from ctl'")
    options(tables.ctl, "baton-ctl", "")
    for before, words in tables.paths():
        named = [word for word in before if word != "*"]
        for program, first in (("baton", ["ctl"]), ("baton-ctl", [])):
            seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in [*first, *named])
            unseen = f"not __fish_seen_subcommand_from {' '.join(words)}"
            condition = f"{seen}; and {unseen}" if seen else unseen
            out.append(f"complete -c {program} -n '{condition}' -a '{' '.join(words)}'")
    return "\n".join(out) + "\n"
