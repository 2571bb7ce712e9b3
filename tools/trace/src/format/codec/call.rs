//! Calls, the files that they map, and limits.

use super::codes::Code;
use super::{BlockDecoder, BlockEncoder, difference, restore};
use crate::event::{Call, CallDetail, EventKind, FileFacts, Limit, MapTrial, TaskId};
use crate::format::Version;
use crate::format::varint::{Cursor, Malformed, put_bytes, put_u64};
use std::sync::Arc;

impl BlockEncoder {
    pub(super) fn call(&mut self, call: &Call) {
        let (out, state) = (&mut self.out, &mut self.state);
        put_u64(out, u64::from(call.number));
        for (arg, last) in call.args.iter().zip(&mut state.last_args) {
            put_u64(out, difference(*arg, *last));
            *last = *arg;
        }
        put_u64(out, difference(call.result as u64, state.last_result));
        state.last_result = call.result as u64;
        match &call.detail {
            CallDetail::None => out.push(0),
            CallDetail::File(file) => {
                out.push(1);
                self.file(file);
            }
            CallDetail::Ranges(ranges) => {
                out.push(2);
                put_u64(out, ranges.len() as u64);
                for (start, len) in ranges {
                    put_u64(out, *start);
                    put_u64(out, *len);
                }
            }
            CallDetail::Name(None) => out.push(3),
            CallDetail::Name(Some(name)) => {
                out.push(4);
                put_bytes(out, name);
            }
            CallDetail::Mapped { start, bytes } => {
                out.push(5);
                put_u64(out, *start);
                put_u64(out, *bytes);
            }
            CallDetail::Resident { pages } => {
                out.push(6);
                put_u64(out, *pages);
            }
        }
    }

    /// A file is written out when a block first names it, and is a number after that.
    fn file(&mut self, file: &Arc<FileFacts>) {
        let out = &mut self.out;
        if let Some(index) = self.files.get(file) {
            put_u64(out, index + 1);
            return;
        }
        self.files.insert(Arc::clone(file), self.files.len() as u64);
        out.push(0);
        out.push(file.kind.code());
        out.push(u8::from(file.readable) | u8::from(file.writable) << 1 | u8::from(file.no_exec) << 2);
        for number in [file.device, file.inode, file.size, file.file_system] {
            put_u64(out, number);
        }
        put_bytes(out, &file.name);
        match file.trial {
            None => out.push(0),
            Some(trial) => {
                out.push(1);
                for errno in [trial.refused, trial.write_refused, trial.exec_refused] {
                    put_u64(out, u64::from(errno.unwrap_or(0)));
                }
            }
        }
    }
}

impl BlockDecoder {
    pub(super) fn call(&mut self, cursor: &mut Cursor<'_>) -> Result<EventKind, Malformed> {
        let number = cursor.u32()?;
        let state = &mut self.state;
        for last in &mut state.last_args {
            *last = restore(cursor.i64()?, *last);
        }
        let args = state.last_args;
        state.last_result = restore(cursor.i64()?, state.last_result);
        let result = state.last_result as i64;
        let detail = match cursor.u8()? {
            0 => CallDetail::None,
            1 => CallDetail::File(self.file(cursor)?),
            2 => {
                let count = cursor.count(2)?;
                let ranges = (0..count).map(|_| Ok((cursor.u64()?, cursor.u64()?)));
                CallDetail::Ranges(ranges.collect::<Result<_, Malformed>>()?)
            }
            3 => CallDetail::Name(None),
            4 => CallDetail::Name(Some(cursor.boxed()?)),
            5 => CallDetail::Mapped { start: cursor.u64()?, bytes: cursor.u64()? },
            6 => CallDetail::Resident { pages: cursor.u64()? },
            _ => return Err(Malformed("unknown detail of a call")),
        };
        Ok(EventKind::Call(Call { number, args, result, detail }))
    }

    fn file(&mut self, cursor: &mut Cursor<'_>) -> Result<Arc<FileFacts>, Malformed> {
        let place = cursor.u64()?;
        if place > 0 {
            let index = usize::try_from(place - 1).ok();
            let file = index.and_then(|index| self.files.get(index));
            return file.cloned().ok_or(Malformed("a call names a file that its block does not define"));
        }
        let kind = Code::from_code(cursor.u8()?)?;
        let bits = cursor.u8()?;
        if bits > 7 {
            return Err(Malformed("a file uses reserved bits"));
        }
        let file = Arc::new(FileFacts {
            kind,
            readable: bits & 1 != 0,
            writable: bits & 2 != 0,
            no_exec: bits & 4 != 0,
            device: cursor.u64()?,
            inode: cursor.u64()?,
            size: cursor.u64()?,
            file_system: cursor.u64()?,
            name: cursor.boxed()?,
            trial: if self.version < Version::THREE { None } else { get_trial(cursor)? },
        });
        self.files.push(Arc::clone(&file));
        Ok(file)
    }
}

fn get_trial(cursor: &mut Cursor<'_>) -> Result<Option<MapTrial>, Malformed> {
    match cursor.u8()? {
        0 => return Ok(None),
        1 => {}
        _ => return Err(Malformed("a file uses reserved bits")),
    }
    let mut errno = || match cursor.u64()? {
        0 => Ok(None),
        errno @ 1..4096 => Ok(Some(errno as u16)),
        _ => Err(Malformed("a file is refused with a number that is no errno")),
    };
    Ok(Some(MapTrial { refused: errno()?, write_refused: errno()?, exec_refused: errno()? }))
}

pub(super) fn put_limit(out: &mut Vec<u8>, limit: &Limit) {
    out.push(limit.kind.code());
    for number in [u64::from(limit.target.0), limit.soft, limit.hard] {
        put_u64(out, number);
    }
}

pub(super) fn get_limit(cursor: &mut Cursor<'_>) -> Result<Limit, Malformed> {
    Ok(Limit {
        kind: Code::from_code(cursor.u8()?)?,
        target: TaskId(cursor.u32()?),
        soft: cursor.u64()?,
        hard: cursor.u64()?,
    })
}
