#!/usr/bin/env bash
# Words that this tree once used for what the field has a term for. A function returns, it does not answer; a crate is a
# crate, not a room; LRU lists are no lists by age; a reference is dropped, not let go of; a sentence names who acts.
#
#     checks/language.sh            prints file:line:word of each; fails where a folder has more, or fewer, than its bound
#     checks/language.sh --count    prints the number in each folder
#     checks/language.sh --lower    lowers the bounds below to what is there
#
# The bounds only fall. A folder without one may have none, but docs (with README.md) may have 19: each plain English.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bounds='
'
plain=19

words='who(so)?m?ever|(no|some|any|every)body'
words+='|answer(s|ed|ing)?'
words+='|lists? by age|(?<![a-z])(lets go|let(s|ting)? go of)(?![a-z])'
# A crate. What there is space for, and what is made, is room.
words+='|(?<![a-z])rooms(?![a-z])|(?<![a-z])room.s(?= )'
words+='|(?<![a-z])(core|frame|space|swap|memcg|reclaim|sync|trace|each|every|whole|this|that|a|the|new|other) room(?![a-z])(?! for| to | between| left)'
# Notes that no reader of the tree has.
words+='|races\.md|(?-i:[Tt]echnique [A-E])(?![a-z])'

usage() {
    sed -n '2,/^$/{ /^#/ s/^# \{0,1\}//p }' "${BASH_SOURCE[0]}" | sed '/^set /,$d' >&2
    exit 2
}

# Patches: their text and what they add. The rest is the code's, and counted there.
found() {
    git ls-files -z | grep -zvE '\.patch$|^checks/language\.sh$|^LICENSE|^fuzz/corpus/|^tools/cli/recordings$' |
        xargs -0 grep -InHoiP "$words" || true
    git ls-files -z '*.patch' | xargs -0 grep -InHoiP "^(?![ -]).*?\K($words)" || true
    git ls-files | { grep -oiP ".*($words)" || true; } | sed 's/$/:0:(name of the file)/'
}

# The crate, or the top folder, or the file, of a path.
folder() {
    sed -E 's#^((crates|tools)/[^/:]+|[^/:]+)(/[^:]*)?:.*#\1#; s#^README\.md$#docs#'
}

list=$(found)
counts=$(folder <<< "$list" | sort | uniq -c | awk 'NF == 2 { print $2, $1 }')

case ${1:-} in
--count)
    echo "$counts"
    exit
    ;;
--lower)
    while read -r name bound; do
        now=$(awk -v name="$name" '$1 == name { print $2 }' <<< "$counts")
        if [[ -z $now ]] || [[ $name == docs && $now -le $plain ]]; then
            sed -i "/^bounds=/,/^'/{\\#^$name [0-9]*\$#d}" checks/language.sh
        elif ((now < bound)); then
            sed -i "/^bounds=/,/^'/s#^$name [0-9]*\$#$name $now#" checks/language.sh
        fi
    done <<< "${bounds//$'\n\n'/$'\n'}"
    exit
    ;;
'') ;;
*) usage ;;
esac

[[ -z $list ]] || echo "$list"
bad=0
while read -r name; do
    [[ -n $name ]] || continue
    now=$(awk -v name="$name" '$1 == name { print $2 }' <<< "$counts")
    bound=$(awk -v name="$name" '$1 == name { print $2 }' <<< "$bounds")
    now=${now:-0} least=${bound:-0} most=${bound:-0}
    if [[ $name == docs && -z $bound ]]; then
        most=$plain
    fi
    if ((now > most)); then
        echo "$name has $now words of the old language, $most may be there" >&2
        bad=1
    elif ((now < least)); then
        echo "$name has $now words of the old language, fewer than $least: lower the bound (checks/language.sh --lower)" >&2
        bad=1
    fi
done < <(awk 'NF == 2 { print $1 }' <<< "$counts"$'\n'"$bounds" | sort -u)
exit "$bad"
