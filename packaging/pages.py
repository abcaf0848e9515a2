"""Manual pages, from what the programs say with --help."""

import re

import help_tables


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return re.sub(r"(?m)^\.", r"\\&.", text)


def page(name, section, version, date, summary, body):
    return (f'.\\" Made by `./baton package` from the programs\\(aq own help.\n'
            f'.TH {roff(name.upper())} {section} {date} "baton {version.split("~")[0]}" "Baton"\n'
            f".SH NAME\n{roff(name)} \\- {roff(summary)}\n{body}")


def heading(text):
    return f".SH {roff(text.upper())}\n"


def lines(text):
    """Paragraphs of plain text; what is set in is left as it stands."""
    out = []
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        if all(line.startswith("  ") for line in paragraph.splitlines()):
            out.append(f".PP\n.nf\n{roff(paragraph)}\n.fi\n")
        else:
            out.append(".PP\n" + "".join(roff(line.strip()) + "\n" for line in paragraph.splitlines()))
    return "".join(out).removeprefix(".PP\n")  # a heading has been there


def options(table):
    out = []
    for option in table:
        value = f" \\fI{roff(option.value)}\\fR" if option.value else ""
        flags = ", ".join(f"\\fB{roff(flag)}\\fR" for flag in option.flag.split(","))
        meaning = option.meaning + (f" ({', '.join(option.choices)})" if option.choices and "(" not in option.meaning else "")
        out.append(f".TP\n{flags}{value}\n" + "".join(roff(line) + "\n" for line in meaning.splitlines() or [""]))
    return "".join(out)


def before_options(text):
    """Usage and prose: all lines but those of the table of options."""
    kept = [line for line in text.splitlines() if not re.match(r"  +-|\s{10,}\S", line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip("\n")


def baton_1(version, date, usage, helps):
    synopsis = next(line for line in usage.splitlines() if line.startswith("Usage: "))[7:]
    body = f".SH SYNOPSIS\n\\fB{roff(synopsis)}\\fR\n.SH DESCRIPTION\n"
    body += lines("Baton serves a large language model from separate processes on one host, over HTTP (the OpenAI API and others). "
                  "Prompts are read and replies are written by different processes; each of them may be killed and replaced "
                  "while streams go on.")
    body += heading("Commands")
    for name, meaning in help_tables.commands(usage):
        body += f".TP\n\\fB{roff(name)}\\fR\n{roff(meaning)}\n"
    for name, text in helps.items():
        body += heading(name)
        body += "".join(lines(part.removeprefix("Usage: ")) for part in [before_options(text)])
        body += options(help_tables.columns(text))
    body += heading("Files") + "".join(f".TP\n\\fI{roff(path)}\\fR\n{roff(what)}\n" for path, what in (
        ("/etc/baton/NAME.yaml", "configurations; baton@NAME serves one of them"),
        ("/etc/default/baton", "environment variables of the services"),
        ("/run/baton-NAME, /tmp/baton-UID", "sockets, pid files and logs of a service, or of a user's own Baton"),
        ("/usr/share/baton/demo/model", "the demo model"),
        ("/usr/lib/baton", "the programs, and libtorch")))
    return page("baton", 1, version, date, "serve large language models",
                body + ".SH SEE ALSO\n.BR baton\\-ctl (1),\n.BR baton.yaml (5)\n")


def ctl_1(version, date, help_text, command_text):
    body = ".SH SYNOPSIS\n\\fBbaton\\-ctl\\fR [\\fIoptions\\fR] \\fIcommand\\fR...\n.SH DESCRIPTION\n"
    body += lines(help_text.splitlines()[0] + ".\n\nWithout options it speaks to this user's Baton in /tmp/baton-UID; "
                  "a service is named with  --socket /run/baton-NAME/admin.sock  (\"baton ctl\" finds the only one by itself).")
    body += heading("Options") + options(help_tables.columns(help_text)) + heading("Commands")
    for synopsis, meaning in help_tables.admin_commands(command_text):
        if meaning:
            body += f".TP\n\\fB{roff(synopsis)}\\fR\n{roff(meaning)}\n"
    return page("baton-ctl", 1, version, date, "administer a running Baton",
                body + ".SH SEE ALSO\n.BR baton (1),\n.BR baton.yaml (5)\n")


def yaml_5(version, date, help_text, example):
    body = ".SH DESCRIPTION\n" + lines(
        "A configuration is one YAML file: keys of all processes at the top level, and the sections scheduler, frontend, "
        "worker, and the list workers. Each key is also an option of the command line, which wins over the file: "
        "--SECTION.KEY VALUE of \"baton serve\". Relative paths start from the file's folder.")
    for title, table in help_tables.sections(help_text):
        if not title or title.startswith("Options of this process"):
            continue
        for option in table:
            # In the file the section stands above its keys.
            option.flag = re.sub(r"^--(?:scheduler\.|frontend\.|worker\.)?", "", option.flag)
        body += heading(title.replace("Options of all processes (top level of the file)", "Top level")) + options(table)
    body += heading("Example") + ".nf\n" + roff(example) + ".fi\n"
    return page("baton.yaml", 5, version, date, "configuration of Baton", body + ".SH SEE ALSO\n.BR baton (1)\n")
