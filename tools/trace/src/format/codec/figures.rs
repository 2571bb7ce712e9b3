//! Linux's figures.

use crate::event::LinuxFigures;
use crate::format::varint::{Cursor, Malformed};
use crate::format::wire::{Wire, wire};

wire!(LinuxFigures {
    cause,
    pid,
    vm_peak,
    vm_size,
    vm_hwm,
    vm_rss,
    rss_anon,
    rss_file,
    rss_shmem,
    vm_data,
    vm_stk,
    vm_pte,
    vm_swap,
    mappings,
    vm_pte_peak,
    mappings_peak,
    threads_peak,
    minor_faults,
    major_faults,
    processor_ns (since SEVEN, before 0),
});
