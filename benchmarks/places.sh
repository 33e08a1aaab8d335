#!/usr/bin/env bash
# Makes file systems and devices for `compare routes`, and prints them as NAME=PATH, which its option --place takes.
# Needs root.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
# devices.sh makes this script's devices too: another image and mark keep them apart from those of other uses.
export IMAGE=${IMAGE:-/dev/shm/ringfile-places.img}
size=${SIZE:-512M}
# Marks a folder that setup made, so that teardown never removes another one.
mark=ringfile-places
compare=${COMPARE:-${CARGO_TARGET_DIR:-$here/target}/release/compare}

usage() {
    cat >&2 <<USAGE
usage: $0 setup DIRECTORY      make all places that this machine can have, print a line NAME=PATH for each
       $0 teardown DIRECTORY   undo setup, and remove DIRECTORY
DIRECTORY must be on a disk, and must not exist yet. SIZE is the size of each device (512M); COMPARE names the program
that serves the FUSE file system. Places that cannot be made are skipped, and listed on standard error.
USAGE
    exit 2
}

skip() {
    echo "SKIPPED $1: $2" >&2
}

# Runs a command; prints the end of its output if it fails.
try() {
    local place=$1 words
    shift
    words=$("$@" 2>&1) && return
    skip "$place" "$1: ${words##*$'\n'}"
    return 1
}

kind() {
    stat -f -c %T "$1"
}

tmpfs() {
    mkdir "$dir/tmpfs" && try tmpfs mount -t tmpfs -o size=2g ringfile-places "$dir/tmpfs" || return
    echo "tmpfs=$dir/tmpfs"
}

ext4() {
    # stat has one name for ext2, ext3 and ext4.
    if [ "$(kind "$dir")" != ext2/ext3 ]; then
        skip ext4 "$dir is on $(kind "$dir")"
        return
    fi
    mkdir "$dir/ext4" && echo "ext4=$dir/ext4"
}

overlay() {
    local of=$dir/overlay
    mkdir -p "$of/lower" "$of/upper" "$of/work" "$of/all"
    try overlayfs mount -t overlay ringfile-places \
        -o "lowerdir=$of/lower,upperdir=$of/upper,workdir=$of/work" "$of/all" || return
    echo "overlayfs=$of/all"
}

# Makes a file system on a loop device over a file on the disk. The loop device uses direct I/O, so that the page cache
# of the disk's file system is not in between.
on_loop() {
    local name=$1 loop
    shift
    truncate -s 4G "$dir/$name.img" && mkdir "$dir/$name"
    loop=$(losetup --find --show --direct-io=on "$dir/$name.img" 2>&1) || {
        skip "$name" "losetup: $loop"
        return
    }
    echo "$loop" > "$dir/$name.loop"
    try "$name" "$@" "$loop" && try "$name" mount -t "$name" "$loop" "$dir/$name" || return
    echo "$name=$dir/$name"
}

fuse() {
    local of=$dir/fuse
    if [ ! -x "$compare" ]; then
        skip fuse "$compare does not exist: run cargo build --release"
        return
    fi
    mkdir "$of" && truncate -s "$size" "/dev/shm/ringfile-places-fuse.img" || return
    setsid "$compare" fuse "$of" /dev/shm/ringfile-places-fuse.img > "$dir/fuse.log" 2>&1 < /dev/null &
    for _ in $(seq 50); do
        [ -e "$of/data" ] && break
        sleep 0.1
    done
    if [ ! -e "$of/data" ]; then
        skip fuse "not mounted: $(tail -n 1 "$dir/fuse.log")"
        return
    fi
    echo "fuse=$of/data"
}

devices() {
    local made
    if [ "$(cat /sys/block/zram0/disksize 2>/dev/null || echo none)" != 0 ]; then
        skip zram "/dev/zram0 does not exist, or is in use"
    elif made=$("$here/devices.sh" zram-up "$size" 2>&1); then
        : > "$dir/devices"
        echo "zram=$made"
    else
        skip zram "$made"
    fi
    if made=$("$here/devices.sh" loop-up "$size" 2>&1); then
        : > "$dir/devices"
        echo "loop=$made"
    else
        skip loop "$made"
    fi
}

setup() {
    mkdir -p "$(dirname "$dir")" && mkdir "$dir" && : > "$dir/$mark" || exit 1
    tmpfs
    overlay
    ext4
    on_loop xfs mkfs.xfs -q -f
    on_loop btrfs mkfs.btrfs -q -f
    fuse
    devices
}

teardown() {
    local mount loop left=0
    [ -d "$dir" ] || exit 0
    if [ ! -e "$dir/$mark" ]; then
        echo "$0: $dir was not made by setup" >&2
        exit 1
    fi
    for mount in tmpfs overlay/all xfs btrfs fuse; do
        if mountpoint -q "$dir/$mount"; then
            umount "$dir/$mount" || left=1
        fi
    done
    for loop in "$dir"/*.loop; do
        if [ -e "$loop" ]; then
            losetup --detach "$(cat "$loop")" || left=1
        fi
    done
    if [ -e "$dir/devices" ]; then
        "$here/devices.sh" down || left=1
    fi
    rm -f /dev/shm/ringfile-places-fuse.img
    if [ "$left" = 1 ]; then
        echo "$0: something is still in use, $dir is left as it is" >&2
        exit 1
    fi
    rm -rf --one-file-system "$dir"
}

[ $# -eq 2 ] || usage
dir=$(realpath -m "$2")
case $1 in
    setup) setup ;;
    teardown) teardown ;;
    *) usage ;;
esac
