//! Process images.

use super::codes::Code;
use super::{difference, restore};
use crate::event::{ExecGain, ExecImage, Limits, Mapping, MmapBase, PageRun, Privileges, Rlimit, VmFlags};
use crate::format::Version;
use crate::format::varint::{Cursor, Malformed, put_bytes, put_u64};

pub(super) fn put(out: &mut Vec<u8>, image: &ExecImage) {
    put_u64(out, u64::from(image.pid));
    out.push(image.abi.code());
    put_bytes(out, &image.program);
    put_u64(out, image.args.len() as u64);
    for arg in &image.args {
        put_bytes(out, arg);
    }
    for number in [
        image.start_brk,
        image.brk,
        image.start_stack,
        image.arg_start,
        image.arg_end,
        image.env_start,
        image.env_end,
    ] {
        put_u64(out, number);
    }
    match image.mmap_base {
        None => out.push(0),
        Some(base) => {
            out.push(1);
            put_u64(out, base.addr);
            out.extend([base.direction.code(), base.source.code()]);
        }
    }
    let limits = &image.limits;
    for limit in [limits.address_space, limits.data, limits.stack, limits.locked] {
        put_u64(out, limit.soft);
        put_u64(out, limit.hard);
    }
    put_u64(out, image.max_map_count);
    out.push(image.overcommit_memory);
    put_u64(out, image.mmap_min_addr);
    put_u64(out, image.lowest_placed);
    put_u64(out, u64::from(image.personality));
    put_privileges(out, image.privileges);
    out.extend([image.exec_gain.code(), image.thp.code()]);
    put_u64(out, image.page_tables);
    put_u64(out, image.mappings.len() as u64);
    let mut last = 0;
    for mapping in &image.mappings {
        put_mapping(out, mapping, last);
        last = mapping.end;
    }
}

pub(super) fn put_privileges(out: &mut Vec<u8>, privileges: Privileges) {
    out.push(u8::from(privileges.ipc_lock) | u8::from(privileges.sys_rawio) << 1);
}

pub(super) fn get_privileges(cursor: &mut Cursor<'_>) -> Result<Privileges, Malformed> {
    match cursor.u8()? {
        bits @ 0..=3 => Ok(Privileges { ipc_lock: bits & 1 != 0, sys_rawio: bits & 2 != 0 }),
        _ => Err(Malformed("privileges use reserved bits")),
    }
}

fn put_mapping(out: &mut Vec<u8>, mapping: &Mapping, last: u64) {
    put_u64(out, difference(mapping.start, last));
    put_u64(out, difference(mapping.end, mapping.start));
    out.push(
        u8::from(mapping.read)
            | u8::from(mapping.write) << 1
            | u8::from(mapping.execute) << 2
            | u8::from(mapping.shared) << 3,
    );
    for number in [mapping.offset, mapping.device, mapping.inode, mapping.flags.0] {
        put_u64(out, number);
    }
    put_bytes(out, &mapping.name);
    put_u64(out, mapping.resident.len() as u64);
    let mut last = mapping.start;
    for run in &mapping.resident {
        put_u64(out, difference(run.start, last));
        put_u64(out, run.pages);
        out.push(u8::from(run.file));
        last = run.start;
    }
}

pub(super) fn get(cursor: &mut Cursor<'_>, version: Version) -> Result<ExecImage, Malformed> {
    let pid = cursor.u32()?;
    let abi = Code::from_code(cursor.u8()?)?;
    let program = cursor.boxed()?;
    let args = (0..cursor.count(1)?).map(|_| cursor.boxed()).collect::<Result<_, _>>()?;
    let mut places = [0; 7];
    for place in &mut places {
        *place = cursor.u64()?;
    }
    let [start_brk, brk, start_stack, arg_start, arg_end, env_start, env_end] = places;
    let mmap_base = match cursor.u8()? {
        0 => None,
        1 => Some(MmapBase {
            addr: cursor.u64()?,
            direction: Code::from_code(cursor.u8()?)?,
            source: Code::from_code(cursor.u8()?)?,
        }),
        _ => return Err(Malformed("an image uses reserved bits")),
    };
    let limits = Limits {
        address_space: rlimit(cursor)?,
        data: rlimit(cursor)?,
        stack: rlimit(cursor)?,
        locked: rlimit(cursor)?,
    };
    let max_map_count = cursor.u64()?;
    let overcommit_memory = cursor.u8()?;
    let mmap_min_addr = cursor.u64()?;
    let lowest_placed = if version >= Version::THREE { cursor.u64()? } else { mmap_min_addr };
    let personality = cursor.u32()?;
    let (privileges, exec_gain) = if version >= Version::THREE {
        (get_privileges(cursor)?, Code::from_code(cursor.u8()?)?)
    } else {
        let ipc_lock = flag(cursor)?;
        (Privileges { ipc_lock, sys_rawio: ipc_lock }, ExecGain::Allowed)
    };
    let thp = Code::from_code(cursor.u8()?)?;
    let page_tables = cursor.u64()?;
    let mut last = 0;
    let mappings = (0..cursor.count(9)?).map(|_| {
        let mapping = get_mapping(cursor, last)?;
        last = mapping.end;
        Ok(mapping)
    });
    let mappings = mappings.collect::<Result<_, _>>()?;
    Ok(ExecImage {
        pid,
        abi,
        program,
        args,
        mappings,
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
        lowest_placed,
        personality,
        privileges,
        exec_gain,
        thp,
        page_tables,
    })
}

fn rlimit(cursor: &mut Cursor<'_>) -> Result<Rlimit, Malformed> {
    Ok(Rlimit { soft: cursor.u64()?, hard: cursor.u64()? })
}

fn flag(cursor: &mut Cursor<'_>) -> Result<bool, Malformed> {
    match cursor.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed("an image uses reserved bits")),
    }
}

fn get_mapping(cursor: &mut Cursor<'_>, last: u64) -> Result<Mapping, Malformed> {
    let start = restore(cursor.i64()?, last);
    let end = restore(cursor.i64()?, start);
    let bits = cursor.u8()?;
    if bits > 15 {
        return Err(Malformed("a mapping uses reserved bits"));
    }
    let (offset, device, inode) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
    let flags = VmFlags(cursor.u64()?);
    let name = cursor.boxed()?;
    let mut last = start;
    let resident = (0..cursor.count(3)?).map(|_| {
        last = restore(cursor.i64()?, last);
        Ok(PageRun { start: last, pages: cursor.u64()?, file: flag(cursor)? })
    });
    let resident = resident.collect::<Result<_, _>>()?;
    Ok(Mapping {
        start,
        end,
        read: bits & 1 != 0,
        write: bits & 2 != 0,
        execute: bits & 4 != 0,
        shared: bits & 8 != 0,
        offset,
        device,
        inode,
        name,
        flags,
        resident,
    })
}
