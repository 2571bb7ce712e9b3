# Sets up swap for a memory group, and takes both away again when its input is closed. It prints "ready" and
# the device, or "failed" and why.
#
#     NOTES GROUP KIND BYTES [FILE OLD-WORD]...
#
# GROUP is the group's folder, which is made by the process that started this. KIND is none, zram, file or
# zswap. Each FILE gets its old word back. NOTES lists what is to be undone, in lines WHAT WORD PATH, the
# oldest first: if this shell is killed, the next one does it.
trap "" INT TERM HUP PIPE QUIT USR1 USR2
# Where mkswap and its like are, which not every user's path has.
PATH=$PATH:/usr/sbin:/sbin
notes=$1 group=$2 kind=$3 bytes=$4
shift 4
highest=32767

note() {
    echo "$1 $2 $3" >>"$notes"
}

remove_group() {
    [ -d "$1" ] || return 0
    tries=0
    until rmdir "$1" 2>/dev/null; do
        while read -r pid; do
            # 0 is a process that cannot be seen from here.
            [ "$pid" -gt 1 ] && kill -9 "$pid"
        done <"$1/cgroup.procs"
        tries=$((tries + 1))
        [ $tries -lt 200 ] || return 1
        sleep 0.05
    done 2>/dev/null
}

swap_off() {
    grep -q "^$1 " /proc/swaps || return 0
    swapoff "$1"
}

# A device that has just been swapped off may be busy for a moment: other programs look at it.
remove_zram() {
    [ -d "/sys/block/zram$1" ] || return 0
    tries=0
    until echo 1 >"/sys/block/zram$1/reset" && echo "$1" >/sys/class/zram-control/hot_remove; do
        tries=$((tries + 1))
        [ $tries -lt 200 ] || return 1
        sleep 0.05
    done
}

undo() {
    failed=0
    while read -r what word path; do
        case $what in
            group) remove_group "$path" ;;
            swap) swap_off "$path" ;;
            zram) remove_zram "$word" ;;
            loop) losetup -d "$path" ;;
            file) rm -f "$path" ;;
            write) [ ! -e "$path" ] || echo "$word" >"$path" ;;
        esac || failed=1
    done <<LIST
$(sed '1!G;h;$!d' "$notes")
LIST
    [ $failed = 0 ] && : >"$notes"
}

fail() {
    undo
    echo "failed" "$@" | tr '\n' ' '
    exit 1
}

need() {
    command -v "$1" >/dev/null || fail "$1 is missing (Debian: apt-get install $2)"
}

# The kernel uses the swap of the highest priority first: this.
swap_on() {
    said=$(mkswap "$1" 2>&1) || return 1
    note swap - "$1"
    said=$(swapon -p $highest "$1" 2>&1)
}

set_up_zram() {
    control=/sys/class/zram-control
    [ -d $control ] || modprobe zram 2>/dev/null
    [ -d $control ] || fail "this kernel has no zram"
    number=$(cat $control/hot_add) || fail "no zram device can be added"
    note zram "$number" -
    block=/sys/block/zram$number
    echo lz4 2>/dev/null >"$block/comp_algorithm" || fail "zram has no lz4: $(cat "$block/comp_algorithm")"
    echo "$bytes" 2>/dev/null >"$block/disksize" || fail "zram does not take a size of $bytes"
    device=/dev/zram$number
    swap_on "$device" || fail "$said"
}

make_file() {
    # A new file of a name that cannot be known before, in a folder where others may make links.
    file=$(mktemp "$1/quire-swap-XXXXXXXX" 2>/dev/null) || return 1
    note file - "$file"
    fallocate -l "$bytes" "$file" 2>/dev/null || return 1
}

# A file system that swaps to its files, of those where a large file may be; else a loop device over a file.
set_up_file() {
    need fallocate util-linux
    why="no folder for a swap file of $bytes bytes"
    for folder in /var/tmp /var/lib /tmp /; do
        make_file "$folder" && swap_on "$file" && device=$file && return
        why=${said:-$why}
        rm -f "$file"
    done
    need losetup mount
    for folder in /var/tmp /var/lib /tmp /; do
        make_file "$folder" || continue
        device=$(losetup -f --show "$file" 2>/dev/null) || continue
        note loop - "$device"
        swap_on "$device" && return
        why=$said
        break
    done
    fail "$why"
}

undo 2>/dev/null
[ $failed = 0 ] || {
    echo "failed what an earlier measurement left cannot be taken away: $(tr '\n' ';' <"$notes")"
    exit 1
}
while [ $# -gt 1 ]; do
    note write "$2" "$1"
    shift 2
done
device=-
case $kind in
    none) ;;
    *)
        need mkswap util-linux
        need swapon mount
        case $kind in
            zram) set_up_zram ;;
            *) set_up_file ;;
        esac
        ;;
esac
note group - "$group"
echo "ready $device"
exec >/dev/null
cat >/dev/null
undo
exit $failed
