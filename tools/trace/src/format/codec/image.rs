//! Process images.

use crate::event::{ExecGain, ExecImage, Limits, Mapping, MmapBase, PageRun, Privileges, Rlimit, VmFlags};
use crate::format::Version;
use crate::format::varint::{Cursor, Malformed, difference, put_u64};
use crate::format::wire::{Wire, get_flags, get_list, put_flags, put_list, wire};

wire!(ExecImage {
    pid,
    abi,
    program,
    args,
    start_brk,
    brk,
    start_stack,
    arg_start,
    arg_end,
    env_start,
    env_end,
    mmap_base,
    limits,
    max_map_count,
    overcommit_memory,
    mmap_min_addr,
    lowest_placed(since THREE, before mmap_min_addr),
    personality,
    privileges,
    exec_gain(since THREE, before ExecGain::Allowed),
    thp,
    page_tables,
    mappings,
});
wire!(MmapBase { addr, direction, source });
wire!(Limits { address_space, data, stack, locked });
wire!(Rlimit { soft, hard });

impl Wire for Privileges {
    fn put(&self, out: &mut Vec<u8>) {
        put_flags(out, [self.ipc_lock, self.sys_rawio]);
    }

    fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        if cursor.version() < Version::THREE {
            return bool::get(cursor).map(|both| Self { ipc_lock: both, sys_rawio: both });
        }
        let [ipc_lock, sys_rawio] = get_flags(cursor, "privileges use reserved bits")?;
        Ok(Self { ipc_lock, sys_rawio })
    }
}

/// Each begins where the one before it ends, or not far from there.
impl Wire for Vec<Mapping> {
    fn put(&self, out: &mut Vec<u8>) {
        let mut last = 0;
        put_list(out, self, |mapping, out| {
            put_mapping(out, mapping, last);
            last = mapping.end;
        });
    }

    fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let mut last = 0;
        get_list(cursor, 9, |cursor| {
            let mapping = get_mapping(cursor, last)?;
            last = mapping.end;
            Ok(mapping)
        })
    }
}

fn put_mapping(out: &mut Vec<u8>, mapping: &Mapping, last: u64) {
    put_u64(out, difference(mapping.start, last));
    put_u64(out, difference(mapping.end, mapping.start));
    put_flags(out, [mapping.read, mapping.write, mapping.execute, mapping.shared]);
    for number in [mapping.offset, mapping.device, mapping.inode, mapping.flags.0] {
        put_u64(out, number);
    }
    mapping.name.put(out);
    let mut last = mapping.start;
    put_list(out, &mapping.resident, |run, out| {
        put_u64(out, difference(run.start, last));
        run.pages.put(out);
        run.file.put(out);
        last = run.start;
    });
}

fn get_mapping(cursor: &mut Cursor<'_>, last: u64) -> Result<Mapping, Malformed> {
    let start = cursor.restore(last)?;
    let end = cursor.restore(start)?;
    let [read, write, execute, shared] = get_flags(cursor, "a mapping uses reserved bits")?;
    let (offset, device, inode) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
    let (flags, name) = (VmFlags(cursor.u64()?), Wire::get(cursor)?);
    let mut last = start;
    let resident = get_list(cursor, 3, |cursor| {
        last = cursor.restore(last)?;
        Ok(PageRun { start: last, pages: cursor.u64()?, file: Wire::get(cursor)? })
    })?;
    Ok(Mapping { start, end, read, write, execute, shared, offset, device, inode, name, flags, resident })
}
