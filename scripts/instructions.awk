# Adds up a profile of callgrind (--dump-instr=yes --compress-pos=no). First file: where atomic instructions are, an address
# a line, as objdump prints them. Second file: the profile. Prints counts of five kinds: all instructions; those that look
# for the first frame of a folio; those that read entries, count them as unmapped and note what is mapped in part; those of the
# memory manager; atomic instructions.
function named(text,    id) { # A name is written out where it occurs first, with a number that stands for it from then on.
    match(text, /\([0-9]+\)/)
    id = substr(text, RSTART, RLENGTH)
    if (length(text) > RLENGTH) names[id] = substr(text, RLENGTH + 2)
    return names[id]
}
FNR == NR { atomic["0x" $1] = 1; next }
/^fn=/ { name = named(substr($0, 4)); next }
/^cfn=/ { named(substr($0, 5)); next }
# What follows is the callee's.
/^calls=/ { callee = 1; next }
/^0x/ {
    if (callee) { callee = 0; next }
    all += $3
    if (name ~ /folio_of_tail/) head += $3
    if (name ~ /::free_detached_table|lock_folio|equal_entries|unmap_locked|defer_split/) removal += $3
    if (name ~ /quire_(arch|fault|file|frame|memcg|mm|pageout|pagetable|reclaim|slab|space|swap|sync|thp|vma|vma_tree)::/) manager += $3
    if ($1 in atomic) atomics += $3
}
END { printf "%d %d %d %d %d\n", all, head, removal, manager, atomics }
