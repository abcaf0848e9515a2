#!/usr/bin/env python3
"""Stages what was built as it lies when it is installed, and writes the Debian package and the portable archive.

Called by `./baton package`, which builds first. The tree is the same for both: bin, lib/baton, share under a prefix; the
archive also has the shared libraries that the package takes from Debian."""

import argparse
import functools
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

import completions
import front
import pages

ROOT = pathlib.Path(__file__).resolve().parents[1]
HERE = ROOT / "packaging"
PROGRAMS = ["baton-ctl", "baton-fit", "baton-frontend", "baton-grammar", "baton-memory", "baton-plan", "baton-scheduler",
            "baton-supervisor", "baton-worker"]
CONFIGURATIONS = {"cpu": ["1p1d", "1mixed", "2p2d", "2ranks", "dialects"], "cuda": ["1mixed-cuda", "1p1d-cuda"]}
MAINTAINER = "Baton developers <baton@localhost>"
# Parts of the C library, which every system brings: a copy would not fit another one's loader.
C_LIBRARY = re.compile(r"(libc|libm|libpthread|librt|libdl|libutil|libresolv|libanl|libmvec|libnss_\w+)\.so\.\d+$|ld-linux")
DRIVER = re.compile(r"libcuda\.so|libnvidia-")  # comes with the GPU's driver
# Of the CUDA toolkit. The packages that have these are NVIDIA's, not Debian's.
TOOLKIT = re.compile(r"lib(cu(blas|blasLt|dart|pti|rand|sparse|solver|fft)|nv(rtc|JitLink))\b.*\.so")


def run(*command, **more):
    return subprocess.run([str(word) for word in command], check=True, text=True, capture_output=True, **more).stdout


def say(text):
    print(f"  {text}", flush=True)


def version_of_tree():
    version = re.search(r"project\(baton VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    try:
        git = lambda *words: run("git", "-C", ROOT, *words).strip()
        if f"v{version}" in git("tag", "--points-at", "HEAD").split():
            return version
        # Older than the release to come, and newer than every commit before it.
        when = time.strftime("%Y%m%d.%H%M", time.gmtime(int(git("show", "-s", "--format=%ct", "HEAD"))))
        return f"{version}~{when}.{git('rev-parse', '--short=8', 'HEAD')}"
    except (OSError, subprocess.CalledProcessError):
        return version


def date_of_tree():
    try:
        return int(run("git", "-C", ROOT, "show", "-s", "--format=%ct", "HEAD"))
    except (OSError, subprocess.CalledProcessError):
        return int(time.time())


def is_elf(path):
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def libraries(binary):
    """What the loader finds for it: {name: path}."""
    found = {}
    for line in run("ldd", binary).splitlines():
        if "not found" in line:
            raise SystemExit(f"{binary}: {line.strip()}")
        parts = re.match(r"\s*(\S+) => (/\S+)", line)
        if parts:
            found[parts.group(1)] = pathlib.Path(parts.group(2))
    return found


@functools.cache
def is_debians(path):
    """Whether a package of this system owns the file, under either name of its folder (/lib, /usr/lib)."""
    real = str(path.resolve())
    names = {str(path), real, re.sub(r"^/usr(/lib)", r"\1", real), "/usr" + str(path)}
    return bool(subprocess.run(["dpkg-query", "-S", *names], text=True, capture_output=True).stdout.strip())


def set_rpath(binary, rpath):
    """The linker left the folder of libtorch in it. CMake can write another one in its place, so that no tool of its own
    is needed."""
    script = f'file(RPATH_SET FILE "{binary}" NEW_RPATH "{rpath}")'.replace("$", "\\$")
    with tempfile.NamedTemporaryFile("w", suffix=".cmake") as file:
        file.write(script)
        file.flush()
        run("cmake", "-P", file.name)


def copy(source, target, mode=0o644):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def write(target, text, mode=0o644):
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    target.chmod(mode)


class Helps:
    """What the built programs say of themselves."""

    def __init__(self, bin_folder):
        self.scheduler = run(bin_folder / "baton-scheduler", "--help")
        self.ctl = run(bin_folder / "baton-ctl", "--help").replace(str(bin_folder) + "/", "")
        # The scheduler knows its own commands.
        with tempfile.TemporaryDirectory(prefix="baton-package-") as folder:
            scheduler = subprocess.Popen([bin_folder / "baton-scheduler", "--config", ROOT / "configs" / "1mixed.yaml",
                                          "--run_dir", folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                end = time.monotonic() + 30
                while not (pathlib.Path(folder) / "admin.sock").exists() and time.monotonic() < end:
                    time.sleep(0.05)
                self.ctl_commands = run(bin_folder / "baton-ctl", "--socket", pathlib.Path(folder) / "admin.sock", "help")
            finally:
                scheduler.terminate()
                scheduler.wait()


def has_package(library, path, toolkit):
    """Whether a package is to bring a library. `toolkit`: "bundled", or "packages" for NVIDIA's own ones."""
    if toolkit == "bundled" and TOOLKIT.match(library):
        return False
    if is_debians(path):
        return True
    if toolkit == "packages" and TOOLKIT.match(library) and "cuda" in str(path.resolve()):
        raise SystemExit(f"--cuda-libraries packages: no package owns {path}; this toolkit was not installed from NVIDIA's "
                         "Debian packages. Leave the option out to bundle it")
    return False


def stage_programs(bin_folder, target, libs, toolkit="bundled"):
    """Programs without their debug information; what they load and no package is to bring goes beside them, into
    `libs`. Returns what packages bring."""
    missing = [name for name in PROGRAMS if not (bin_folder / name).exists()]
    if missing:
        raise SystemExit(f"{bin_folder}: there is no {', '.join(missing)}")
    debians = {}
    for name in PROGRAMS:
        copy(bin_folder / name, target / name, 0o755)
        run("strip", target / name)
        readelf = run("readelf", "-d", target / name)
        if "[$ORIGIN/../lib]" not in readelf:
            set_rpath(target / name, "$ORIGIN/../lib")
        for library, path in libraries(bin_folder / name).items():
            if C_LIBRARY.match(library) or DRIVER.match(library):
                continue
            if has_package(library, path, toolkit):
                debians[library] = path
            elif not (libs / library).exists():
                copy(path, libs / library)
    return debians


def dependencies():
    return pathlib.Path(os.environ.get("BATON_DEPS", ROOT / ".deps"))


def stage(base, version, helps, date):
    """The tree under a prefix, without configurations and units. Returns Debian's libraries."""
    lib = base / "lib" / "baton"
    debians = stage_programs(ROOT / "build" / "cpu" / "bin", lib / "bin", lib / "lib")
    deps = dependencies()
    # The front end looks for Jinja2 beside its folder.
    shutil.copytree(deps / "python", lib / "python", ignore=shutil.ignore_patterns("__pycache__", "stamp"))
    launcher = (ROOT / "baton").read_text()
    has_top = bool(re.search(r"(?m)^top\b", helps.ctl_commands))
    write(base / "bin" / "baton", front.front(launcher, (HERE / "front.sh").read_text(), version, has_top), 0o755)
    (base / "bin" / "baton-ctl").symlink_to("../lib/baton/bin/baton-ctl")
    share = base / "share"
    for file in sorted((ROOT / "demo" / "model").iterdir()):
        copy(file, share / "baton" / "demo" / "model" / file.name)
    front_help = {name: run("sh", base / "bin" / "baton", name, "--help") for name in ("serve", "upgrade")}
    usage = run("sh", base / "bin" / "baton", "help")
    day = time.strftime("%Y-%m-%d", time.gmtime(date))
    example = (ROOT / "configs" / "1p1d.yaml").read_text().replace("../demo", "/usr/share/baton/demo")
    write(share / "man" / "man1" / "baton.1", pages.baton_1(version, day, usage, front_help))
    write(share / "man" / "man1" / "baton-ctl.1", pages.ctl_1(version, day, helps.ctl, helps.ctl_commands))
    write(share / "man" / "man5" / "baton.yaml.5", pages.yaml_5(version, day, helps.scheduler, example))
    tables = completions.Tables(usage, front_help["serve"], front_help["upgrade"], helps.scheduler, helps.ctl,
                                helps.ctl_commands)
    write(share / "bash-completion" / "completions" / "baton", completions.bash(tables))
    (share / "bash-completion" / "completions" / "baton-ctl").symlink_to("baton")
    write(share / "zsh" / "vendor-completions" / "_baton", completions.zsh(tables))
    write(share / "fish" / "vendor_completions.d" / "baton.fish", completions.fish(tables))
    (share / "fish" / "vendor_completions.d" / "baton-ctl.fish").symlink_to("baton.fish")
    document = share / "doc" / "baton"
    copyright_file(document / "copyright", dependencies_licences(deps))
    copy(ROOT / "CHANGELOG.md", document / "CHANGELOG.md")
    for name in ("README.md", "docs/install.md", "docs/api.md", "docs/models.md", "docs/reliability.md"):
        copy(ROOT / name, document / pathlib.Path(name).name)
    return debians


def stage_cuda(base, programs, toolkit):
    lib = base / "lib" / "baton"
    # One folder of libraries, and one of Python, for both.
    (lib / "lib").mkdir(parents=True)
    debians = stage_programs(programs, lib / "cuda" / "bin", lib / "lib", toolkit)
    (lib / "cuda" / "lib").symlink_to("../lib")
    (lib / "cuda" / "python").symlink_to("../python")
    bundled = [("libcublasLt (NVIDIA CUDA)", cuda_licence(dependencies()))] if toolkit == "bundled" else []
    copyright_file(base / "share" / "doc" / "baton-cuda" / "copyright", bundled)
    return debians


def copyright_file(target, licences):
    """Baton's licence and those of what a package bundles: pairs of a title and a file."""
    parts = ["Baton\n\n" + (ROOT / "LICENSE").read_text()]
    parts += [f"{title}\n\n" + file.read_text(errors="replace") for title, file in licences]
    write(target, ("\n" + "-" * 80 + "\n\n").join(parts))


def dependencies_licences(deps):
    files = sorted([*deps.glob("torch/**/LICENSE"), *deps.glob("xgrammar/LICENSE"), *deps.glob("xgrammar/NOTICE"),
                    *deps.glob("python/*/licenses/*")])
    named = [(f"{file.relative_to(deps).parts[file.relative_to(deps).parts[0] == 'python']} ({file.name})", file)
             for file in files]
    return [*named, ("libcudart, libcupti (NVIDIA CUDA)", cuda_licence(deps))]


def cuda_licence(deps):
    """The terms of all of CUDA's libraries; they came with the run-time library that libtorch needs."""
    return deps / "torch" / "cuda" / "License.txt"


def stage_configurations(target, model, names):
    for name in names:
        text = (ROOT / "configs" / f"{name}.yaml").read_text()
        if "\nmodel: ../demo/model\n" not in "\n" + text:
            raise SystemExit(f"configs/{name}.yaml: the model is not ../demo/model")
        text = text.replace("model: ../demo/model", f"model: {model}").replace("baton-scheduler --help", "baton.yaml(5)")
        write(target / f"{name}.yaml", text)


def depends(tree, folder):
    """What dpkg-shlibdeps says of every ELF file of the tree. All trees of the folder may have the libraries."""
    write(folder / "debian" / "control", "Source: baton\n\nPackage: baton\nArchitecture: amd64\nDescription: none\n")
    elves = [path for path in sorted(tree.rglob("*")) if is_elf(path)]
    own = [path for path in sorted(folder.glob("*/usr/lib/baton/lib")) if not path.is_symlink()]
    words = [f"-e{path}" for path in elves]
    # libtorch comes with an OpenMP library of its own.
    bundled = ["-xlibgomp1"] if any((path / "libgomp.so.1").exists() for path in own) else []
    out = run("dpkg-shlibdeps", "-O", "--ignore-missing-info", *[f"-l{path}" for path in own], *bundled, *words, cwd=folder)
    return re.search(r"shlibs:Depends=(.*)", out).group(1)


def build_deb(tree, control_text, scripts, output, level):
    """The package of a tree, with its conffiles and sums. Without a level the tree is left as dpkg-deb would take it."""
    files = [path for path in sorted(tree.rglob("*")) if path.is_file() and not path.is_symlink()]
    for path in [tree, *tree.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    folder = tree / "DEBIAN"
    size = sum(path.stat().st_size for path in files) // 1024 + 1
    write(folder / "control", control_text.replace("@SIZE@", str(size)))
    write(folder / "md5sums", "".join(
        f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(tree)}\n" for path in files
        if not path.is_relative_to(tree / "etc")))
    conffiles = "".join(f"/{path.relative_to(tree)}\n" for path in files if path.is_relative_to(tree / "etc"))
    if conffiles:
        write(folder / "conffiles", conffiles)
    for script, file in scripts.items():
        write(folder / script, "#!/bin/sh\nset -e\n" + (HERE / "services.sh").read_text() + (HERE / file).read_text(), 0o755)
    if level is None:
        return
    run("dpkg-deb", "--root-owner-group", "-Zzstd", f"-z{level}", "--build", tree, output)
    shutil.rmtree(folder)


def control(name, version, needs, description):
    return (f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: {MAINTAINER}\nSection: net\n"
            f"Priority: optional\nInstalled-Size: @SIZE@\nDepends: {needs}\nDescription: {description}\n")


def package_cpu(tree, work, version, level, output):
    stage_configurations(tree / "etc" / "baton", "/usr/share/baton/demo/model", CONFIGURATIONS["cpu"])
    copy(HERE / "default", tree / "etc" / "default" / "baton")
    unit = (HERE / "baton@.service").read_text().replace("@LIB@", "/usr/lib/baton")
    write(tree / "usr" / "lib" / "systemd" / "system" / "baton@.service", unit)
    for page in (tree / "usr" / "share" / "man").rglob("*.[15]"):
        run("gzip", "-9n", page)
    needs = depends(tree, work) + ", curl, passwd, python3 (>= 3.11)"
    text = control("baton", version, needs, "server for large language models\n"
                   " Serves a model over HTTP (the OpenAI API and others) from separate processes on one host,\n"
                   " each of which may be killed or upgraded while streams go on. A demo model is included.")
    build_deb(tree, text, {"postinst": "postinst.sh", "prerm": "prerm.sh", "postrm": "postrm.sh"}, output, level)


def package_cuda(tree, work, version, level, output):
    stage_configurations(tree / "etc" / "baton", "/usr/share/baton/demo/model", CONFIGURATIONS["cuda"])
    needs = depends(tree, work) + f", baton (= {version})"
    text = control("baton-cuda", version, needs, "server for large language models, on NVIDIA GPUs\n"
                   " The programs of Baton with the CUDA backend. Needed, and in no package of Debian's: a driver that\n"
                   " runs CUDA 13 (580 or later).")
    build_deb(tree, text, {"postinst": "cuda-postinst.sh", "prerm": "cuda-prerm.sh"}, output, level)


def archive(trees, debians, work, version, level, output):
    """All files under one folder, which need nothing but a C library, python3 (chat templates) and curl."""
    top = work / f"baton-{version}-x86_64-linux"
    for tree in trees:
        shutil.copytree(tree / "usr", top, symlinks=True, dirs_exist_ok=True, copy_function=os.link)
    shutil.rmtree(top / "lib" / "systemd")
    for name, path in debians.items():
        copy(path, top / "lib" / "baton" / "lib" / name)
    for tree in trees:
        names = [path.stem for path in (tree / "etc" / "baton").glob("*.yaml")]
        stage_configurations(top / "etc" / "baton", "../../share/baton/demo/model", names)
    (top / "baton").symlink_to("bin/baton")
    if level is None:
        return
    with output.open("wb") as file:
        tar = subprocess.Popen(["tar", "-C", work, "--owner=0", "--group=0", "--numeric-owner", "--sort=name",
                                f"--mtime=@{os.environ['SOURCE_DATE_EPOCH']}", "-cf", "-", top.name], stdout=subprocess.PIPE)
        subprocess.run(["zstd", f"-{level}", "-T0", "-q", "-c"], stdin=tar.stdout, stdout=file, check=True)
        if tar.wait() != 0:
            raise SystemExit("tar failed")


def main():
    parser = argparse.ArgumentParser(prog="./baton package", add_help=False)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--version")
    parser.add_argument("--level", type=int, choices=range(1, 20), default=12, metavar="1 to 19")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build" / "package")
    parser.add_argument("--cuda-libraries", choices=["bundled", "packages"], default="bundled")
    parser.add_argument("--cuda-programs", type=pathlib.Path, default=ROOT / "build" / "cuda" / "bin",
                        help="for tests: what stands for the programs with the CUDA backend")
    parser.add_argument("--stage", action="store_true", help="for tests: leave the trees in OUTPUT/stage, pack nothing")
    args = parser.parse_args()
    version = args.version or version_of_tree()
    if not re.fullmatch(r"[0-9][A-Za-z0-9.+~]*", version):
        raise SystemExit(f"--version {version}: digits first, then letters, digits, '.', '+', '~'")
    date = date_of_tree()
    os.environ["SOURCE_DATE_EPOCH"] = str(date)
    os.umask(0o022)
    output = args.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    for old in [*output.glob("baton*.deb"), *output.glob("baton-*.tar.zst")]:
        old.unlink()
    work = output / "stage"
    shutil.rmtree(work, ignore_errors=True)
    began = time.monotonic()

    helps = Helps(ROOT / "build" / "cpu" / "bin")
    trees = [work / "baton"]
    debians = stage(trees[0] / "usr", version, helps, date)
    if args.device == "cuda":
        trees.append(work / "baton-cuda")
        debians |= stage_cuda(trees[1] / "usr", args.cuda_programs, args.cuda_libraries)
        # What the first package has is not brought twice.
        for library in (trees[1] / "usr" / "lib" / "baton" / "lib").iterdir():
            if (trees[0] / "usr" / "lib" / "baton" / "lib" / library.name).exists():
                library.unlink()
    level = None if args.stage else args.level
    made = []
    for tree, make in zip(trees, (package_cpu, package_cuda)):
        made.append(output / f"{tree.name}_{version}_amd64.deb")
        make(tree, work, version, level, made[-1])
    made.append(output / f"baton-{version}-x86_64-linux.tar.zst")
    archive(trees, debians, work, version, level, made[-1])
    if args.stage:
        return
    shutil.rmtree(work)
    for path in made:
        say(f"{path.stat().st_size / 1e6:.0f} MB  {path}")
    say(f"packed in {time.monotonic() - began:.0f} s. Next: apt install {made[0]}   (docs/install.md)")


if __name__ == "__main__":
    main()
