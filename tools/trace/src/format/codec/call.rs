//! Calls, the files that they map, and limits.

use super::{BlockDecoder, BlockEncoder};
use crate::event::{Call, CallDetail, EventKind, FileFacts, HeldInMemory, Limit, MapTrial};
use crate::format::varint::{Cursor, Malformed, difference, put_u64};
use crate::format::wire::{Wire, get_list, put_list, wire};
use std::sync::Arc;

wire!(Limit { kind, target, soft, hard });

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
                put_list(out, ranges, |(start, len), out| {
                    start.put(out);
                    len.put(out);
                });
            }
            CallDetail::Name(None) => out.push(3),
            CallDetail::Name(Some(name)) => {
                out.push(4);
                name.put(out);
            }
            CallDetail::Mapped { start, bytes } => {
                out.push(5);
                start.put(out);
                bytes.put(out);
            }
            CallDetail::Resident { pages } => {
                out.push(6);
                pages.put(out);
            }
            CallDetail::Site { instruction, on_stack } => {
                out.push(7);
                instruction.put(out);
                on_stack.put(out);
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
        file.put(out);
    }
}

impl BlockDecoder {
    pub(super) fn call(&mut self, cursor: &mut Cursor<'_>) -> Result<EventKind, Malformed> {
        let number = cursor.u32()?;
        let state = &mut self.state;
        for last in &mut state.last_args {
            *last = cursor.restore(*last)?;
        }
        let args = state.last_args;
        state.last_result = cursor.restore(state.last_result)?;
        let result = state.last_result as i64;
        let detail = match cursor.u8()? {
            0 => CallDetail::None,
            1 => CallDetail::File(self.file(cursor)?),
            2 => CallDetail::Ranges(get_list(cursor, 2, |cursor| Ok((cursor.u64()?, cursor.u64()?)))?),
            3 => CallDetail::Name(None),
            4 => CallDetail::Name(Some(Wire::get(cursor)?)),
            5 => CallDetail::Mapped { start: cursor.u64()?, bytes: cursor.u64()? },
            6 => CallDetail::Resident { pages: cursor.u64()? },
            7 => CallDetail::Site { instruction: cursor.u64()?, on_stack: cursor.u64()? },
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
        let file = Arc::new(FileFacts::get(cursor)?);
        self.files.push(Arc::clone(&file));
        Ok(file)
    }
}

wire!(FileFacts {
    kind,
    [readable, writable, no_exec]: "a file uses reserved bits",
    device,
    inode,
    size,
    file_system,
    name,
    trial(since THREE, before None),
    held(since ELEVEN, before None),
    mount_huge(since THIRTEEN, before None),
});
wire!(HeldInMemory { bytes, changed });

impl Wire for MapTrial {
    fn put(&self, out: &mut Vec<u8>) {
        for errno in [self.refused, self.write_refused, self.exec_refused] {
            put_u64(out, u64::from(errno.unwrap_or(0)));
        }
    }

    fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let mut errno = || match cursor.u64()? {
            0 => Ok(None),
            errno @ 1..4096 => Ok(Some(errno as u16)),
            _ => Err(Malformed("a file is refused with a number that is no errno")),
        };
        Ok(Self { refused: errno()?, write_refused: errno()?, exec_refused: errno()? })
    }
}
