//! Linux's figures.

use super::codes::Code;
use crate::event::LinuxFigures;
use crate::format::Version;
use crate::format::varint::{Cursor, Malformed, put_u64};

pub(super) fn put(out: &mut Vec<u8>, figures: &LinuxFigures) {
    out.push(figures.cause.code());
    let numbers = [
        u64::from(figures.pid),
        figures.vm_peak,
        figures.vm_size,
        figures.vm_hwm,
        figures.vm_rss,
        figures.rss_anon,
        figures.rss_file,
        figures.rss_shmem,
        figures.vm_data,
        figures.vm_stk,
        figures.vm_pte,
        figures.vm_swap,
        figures.mappings,
        figures.vm_pte_peak,
        figures.mappings_peak,
        u64::from(figures.threads_peak),
        figures.minor_faults,
        figures.major_faults,
    ];
    for number in numbers {
        put_u64(out, number);
    }
}

pub(super) fn get(cursor: &mut Cursor<'_>, _version: Version) -> Result<LinuxFigures, Malformed> {
    Ok(LinuxFigures {
        cause: Code::from_code(cursor.u8()?)?,
        pid: cursor.u32()?,
        vm_peak: cursor.u64()?,
        vm_size: cursor.u64()?,
        vm_hwm: cursor.u64()?,
        vm_rss: cursor.u64()?,
        rss_anon: cursor.u64()?,
        rss_file: cursor.u64()?,
        rss_shmem: cursor.u64()?,
        vm_data: cursor.u64()?,
        vm_stk: cursor.u64()?,
        vm_pte: cursor.u64()?,
        vm_swap: cursor.u64()?,
        mappings: cursor.u64()?,
        vm_pte_peak: cursor.u64()?,
        mappings_peak: cursor.u64()?,
        threads_peak: cursor.u32()?,
        minor_faults: cursor.u64()?,
        major_faults: cursor.u64()?,
    })
}
