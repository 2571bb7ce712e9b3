#!/usr/bin/env bash
# Links the core crates into a program without std and without an allocator, runs it, and looks at what was linked.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-$here/../target}")/no-std-link
export CARGO_TARGET_DIR
# Flags for the host's programs must not change what is proved here.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_TARGET

fail() {
    echo "no-std-link: $*" >&2
    exit 1
}

for tool in cc:gcc nm:binutils readelf:binutils; do
    command -v "${tool%:*}" > /dev/null ||
        fail "${tool%:*} is missing; install it: apt-get install -y ${tool#*:}"
done

cd "$here/no-std-link"

# No crate of the program may have a std feature switched on, whatever it does with it.
features=$(cargo tree --locked --edges features,normal --target x86_64-unknown-linux-gnu --prefix none)
if grep -E '"(std|alloc)"' <<< "$features"; then
    fail "a crate of the core has a std or alloc feature switched on"
fi

for profile in dev release; do
    cargo build --locked --quiet --profile "$profile"
    folder=${profile/dev/debug}
    program=$CARGO_TARGET_DIR/$folder/no-std-link

    "$program" > "$program.out" || fail "the $profile program failed with exit code $?"
    grep -q '^MemTotal:' "$program.out" || fail "the $profile program printed no figures"
    # The program ends with an error where a call of the release build uses more stack than it may.
    deepest=$(sed -n 's/^deepest stack: //p' "$program.out")
    [[ -n $deepest ]] || fail "the $profile program measured no stack"
    echo "no-std-link: $profile: the deepest call used $deepest bytes of stack"

    # Static: no interpreter and no library to load at run time.
    if readelf --program-headers --wide "$program" | grep -E 'INTERP|DYNAMIC'; then
        fail "the $profile program is not static"
    fi
    nm --format=posix "$program" > "$program.symbols"
    # Mangled names hold the crate's name after its length (3std, 5alloc); the allocator's entry points are plain.
    if grep -E '(^|[^0-9])(3std|5alloc)[0-9A-Z_]|__rust_(alloc|dealloc|realloc)|__rg_|^(malloc|free) ' "$program.symbols"; then
        fail "the $profile program holds symbols of std or of an allocator"
    fi
    if grep -E '^[^ ]+ U' "$program.symbols"; then
        fail "the $profile program has undefined symbols"
    fi
    for crate in space swap reclaim tmpfs; do
        grep -q "quire_$crate" "$program.symbols" ||
            fail "the $profile program holds nothing of quire-$crate, so this proves nothing"
    done
    size=$(stat --format=%s "$program")
    echo "no-std-link: $profile: linked without std and without an allocator, ran well ($((size / 1024)) KiB)"

    # And where an allocator is wanted, Quire's heap is one.
    "$CARGO_TARGET_DIR/$folder/with-heap" > "$program.heap.out" || fail "the $profile program with a heap failed"
    grep -q '^kmalloc-64 ' "$program.heap.out" || fail "the $profile program with a heap printed no figures"
    echo "no-std-link: $profile: boxes, vectors and maps on Quire's heap, ran well"
done
