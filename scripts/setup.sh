# Functions for the scripts beside this one: finding, or on Debian installing, what they need.
# shellcheck shell=bash

# install PACKAGE ...: by apt-get, as root or through sudo. The lists of packages are brought up to date first: security updates of
# Chromium and of compilers are years ahead of the release.
install() {
    if ! command -v apt-get >/dev/null; then
        echo "error: $* must be installed, and there is no apt-get to do it" >&2
        return 1
    fi
    local root=()
    [ "$(id -u)" = 0 ] || root=(sudo)
    echo "installing $*" >&2
    "${root[@]}" apt-get update -q </dev/null >&2 || true
    DEBIAN_FRONTEND=noninteractive "${root[@]}" apt-get install -y -q --no-install-recommends "$@" </dev/null >&2
}

# first FILE ...: the first that exists.
first() {
    local f
    for f in "$@"; do
        if [ -e "$f" ]; then
            echo "$f"
            return
        fi
    done
}

lavapipe() {
    first /usr/share/vulkan/icd.d/lvp_icd.*.json /usr/share/vulkan/icd.d/lvp_icd.json
}

# SwiftShader comes with the Chromium browser.
swiftshader() {
    first /usr/lib/chromium/vk_swiftshader_icd.json /usr/lib/chromium-browser/vk_swiftshader_icd.json \
        /opt/google/chrome/vk_swiftshader_icd.json
}

# Sets VK_DRIVER_FILES to the software drivers, unless it is set.
need_drivers() {
    # Mesa's layer that asks the desktop for its graphics card complains on stderr where there is none.
    [ -n "${XDG_RUNTIME_DIR:-}" ] || export NODEVICE_SELECT=1
    [ -n "${VK_DRIVER_FILES:-}" ] && return
    [ -n "$(lavapipe)" ] || install mesa-vulkan-drivers libvulkan1
    ldconfig -p 2>/dev/null | grep -q libvulkan.so.1 || install libvulkan1
    [ -n "$(swiftshader)" ] || install chromium || echo "warning: tests run without SwiftShader" >&2
    VK_DRIVER_FILES="$(lavapipe)"
    [ -z "$(swiftshader)" ] || VK_DRIVER_FILES="$VK_DRIVER_FILES:$(swiftshader)"
    # LLVM without its optimisations: what lavapipe compiles for tests hardly runs.
    export GALLIVM_PERF="${GALLIVM_PERF:-nopt}"
    # Loaders before 1.3.207 know the second name only.
    export VK_DRIVER_FILES VK_ICD_FILENAMES="$VK_DRIVER_FILES"
}

# The validator of SPIR-V.
need_spirv() {
    command -v spirv-val >/dev/null || install spirv-tools
}

# Whether rustup has the standard library for web pages.
has_wasm_target() {
    [ -d "$(rustc --print sysroot)/lib/rustlib/wasm32-unknown-unknown/lib" ]
}

# Whether Debian's compiler is there and not older than the workspace asks for.
debian_rust_is_new() {
    [ -x /usr/bin/cargo ] && [ -x /usr/bin/rustc ] || return 1
    local want have
    want=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    have=$(/usr/bin/rustc --version | cut -d' ' -f2)
    [ "$(printf '%s\n' "$want" "$have" | sort -V | head -1)" = "$want" ]
}

# Tools that build modules for web pages.
need_wasm() {
    has_wasm_target && return
    debian_rust_is_new || install cargo-web rustc-web rust-web-src
    [ -d /usr/lib/rustlib/src/rust/library ] || install rust-web-src
    command -v wasm-ld >/dev/null || install lld
}

# need_python REQUIREMENT ...: sets $python to an interpreter that has these packages.
need_python() {
    local check='
import sys
from importlib.metadata import version, PackageNotFoundError
for requirement in sys.argv[1:]:
    name, _, want = requirement.partition("==")
    try:
        have = version(name)
    except PackageNotFoundError:
        sys.exit(1)
    if want and have != want:
        sys.exit(1)
'
    for python in target/venv/bin/python python3; do
        if command -v "$python" >/dev/null && "$python" -c "$check" "$@"; then
            return
        fi
    done
    command -v python3 >/dev/null || install python3
    python3 -c 'import venv, ensurepip' 2>/dev/null || install python3-venv
    [ -x target/venv/bin/python ] || python3 -m venv target/venv
    python=target/venv/bin/python
    echo "installing $* into target/venv" >&2
    "$python" -m pip install -q --disable-pip-version-check "$@" >&2
}
