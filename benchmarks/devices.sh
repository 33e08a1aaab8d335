#!/bin/sh
# Makes block devices in memory for comparisons with O_DIRECT: zram, and a loop device over a file in /dev/shm. Run
# `compare --fill` on them before measuring: reads of a zram that was never written do no work, so their times mean
# nothing.
set -eu

ZRAM=${ZRAM:-/dev/zram0}
IMAGE=${IMAGE:-/dev/shm/ringfile-compare.img}
# Marks a zram that this script sized, so that `down` never touches another one.
MARK=/run/ringfile-compare-$(basename "$ZRAM")

usage() {
    cat >&2 <<USAGE
usage: $0 zram-up SIZE    size ${ZRAM} (an unused zram), print its name
       $0 loop-up SIZE    attach a loop device with direct I/O to ${IMAGE}, print its name
       $0 down            remove the devices that this script made
SIZE is as for truncate(1): 1G, 512M. ZRAM and IMAGE in the environment choose others.
USAGE
    exit 2
}

fail() {
    echo "$0: $*" >&2
    exit 1
}

# Returns whether a device is mounted, used for swap, or held by device mapper or another driver.
in_use() {
    name=$(basename "$1")
    number=$(cat "/sys/block/$name/dev")
    awk -v n="$number" '$3 == n { found = 1 } END { exit !found }' /proc/self/mountinfo && return 0
    awk -v d="$1" '$1 == d { found = 1 } END { exit !found }' /proc/swaps && return 0
    [ -n "$(ls -A "/sys/block/$name/holders" 2>/dev/null)" ]
}

bytes() {
    numfmt --from=iec "$1" 2>/dev/null || fail "$1 is not a size such as 1G"
}

attached() {
    losetup --list --noheadings --output NAME --associated "$IMAGE"
}

zram_up() {
    name=$(basename "$ZRAM")
    [ -b "$ZRAM" ] || fail "$ZRAM does not exist: run modprobe zram, or name another device in ZRAM"
    in_use "$ZRAM" && fail "$ZRAM is in use"
    want=$(bytes "$1")
    have=$(cat "/sys/block/$name/disksize")
    if [ "$have" != 0 ]; then
        [ -e "$MARK" ] || fail "$ZRAM has a size already and is not this script's"
        if [ "$have" = "$want" ]; then
            echo "$ZRAM"
            return
        fi
        echo 1 > "/sys/block/$name/reset"
    fi
    : > "$MARK"
    echo "$want" > "/sys/block/$name/disksize"
    echo "$ZRAM"
}

loop_up() {
    loop=$(attached)
    if [ -n "$loop" ]; then
        [ "$(stat -c %s "$IMAGE")" = "$(bytes "$1")" ] || fail "$loop has another size: $0 down first"
    else
        truncate -s "$1" "$IMAGE"
        loop=$(losetup --find --show --direct-io=on --sector-size 4096 "$IMAGE") || {
            rm -f "$IMAGE"
            fail "no loop device to be had"
        }
    fi
    echo "$loop"
}

down() {
    name=$(basename "$ZRAM")
    if [ -e "$MARK" ]; then
        in_use "$ZRAM" && fail "$ZRAM is in use"
        echo 1 > "/sys/block/$name/reset"
        rm -f "$MARK"
    fi
    for loop in $(attached); do
        in_use "$loop" && fail "$loop is in use"
        losetup --detach "$loop"
    done
    rm -f "$IMAGE"
}

[ $# -ge 1 ] || usage
case $1 in
    zram-up) [ $# -eq 2 ] || usage; zram_up "$2" ;;
    loop-up) [ $# -eq 2 ] || usage; loop_up "$2" ;;
    down) [ $# -eq 1 ] || usage; down ;;
    *) usage ;;
esac
