//! Values as bytes: how each is written and read.

use super::varint::{Cursor, Malformed, put_u64};
use crate::event::TaskId;

/// A value that a file holds.
pub(crate) trait Wire: Sized {
    /// Appends its bytes.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads it again.
    fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed>;
}

/// The fields of a struct, in their order in the file. One that older versions do not have is followed by
/// what it is in them, which may name the fields before it.
macro_rules! wire {
    ($type:ident { $($field:ident $((since $version:ident, before $old:expr))?),+ $(,)? }) => {
        impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)+
            }

            fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
                $(let $field = wire!(@get cursor $(, $version, $old)?);)+
                Ok(Self { $($field),+ })
            }
        }
    };
    // Flags among them share a byte; the text says that it has others.
    ($type:ident { $($head:ident,)* [$($flag:ident),+]: $wrong:literal,
        $($field:ident $((since $version:ident, before $old:expr))?),* $(,)? }) => {
        impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$head.put(out);)*
                crate::format::wire::put_flags(out, [$(self.$flag),+]);
                $(self.$field.put(out);)*
            }

            fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
                $(let $head = Wire::get(cursor)?;)*
                let [$($flag),+] = crate::format::wire::get_flags(cursor, $wrong)?;
                $(let $field = wire!(@get cursor $(, $version, $old)?);)*
                Ok(Self { $($head,)* $($flag,)+ $($field),* })
            }
        }
    };
    (@get $cursor:ident) => { Wire::get($cursor)? };
    (@get $cursor:ident, $version:ident, $old:expr) => {
        if $cursor.version() >= crate::format::Version::$version { Wire::get($cursor)? } else { $old }
    };
}
pub(crate) use wire;

/// The bytes that stand for the variants of an enum. They are part of the format: never change one.
macro_rules! codes {
    ($type:ident, $wrong:literal, $($name:ident $(($inner:path))? = $code:literal),+ $(,)?) => {
        impl $type {
            pub(in crate::format) fn code(self) -> u8 {
                match self { $($type::$name $(($inner))? => $code),+ }
            }

            pub(in crate::format) fn from_code(code: u8) -> Result<Self, Malformed> {
                match code { $($code => Ok($type::$name $(($inner))?),)+ _ => Err(Malformed($wrong)) }
            }
        }

        impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.push(self.code());
            }

            fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
                cursor.u8().and_then(Self::from_code)
            }
        }
    };
}
pub(crate) use codes;

/// Appends flags as one byte, the first as its lowest bit.
pub(crate) fn put_flags<const N: usize>(out: &mut Vec<u8>, flags: [bool; N]) {
    out.push(flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag)));
}

/// Reads the flags again. `wrong` says that there are more.
pub(crate) fn get_flags<const N: usize>(
    cursor: &mut Cursor<'_>,
    wrong: &'static str,
) -> Result<[bool; N], Malformed> {
    let bits = cursor.u8()?;
    if bits >> N != 0 {
        return Err(Malformed(wrong));
    }
    Ok(std::array::from_fn(|place| bits >> place & 1 != 0))
}

/// Appends the number of items, and the items.
pub(crate) fn put_list<T>(out: &mut Vec<u8>, items: &[T], mut item: impl FnMut(&T, &mut Vec<u8>)) {
    put_u64(out, items.len() as u64);
    for one in items {
        item(one, out);
    }
}

/// Reads a count, and so many items; `least` is the fewest bytes that one takes.
pub(crate) fn get_list<'a, T, L: FromIterator<T>>(
    cursor: &mut Cursor<'a>,
    least: usize,
    mut item: impl FnMut(&mut Cursor<'a>) -> Result<T, Malformed>,
) -> Result<L, Malformed> {
    (0..cursor.count(least)?).map(|_| item(cursor)).collect()
}

impl Wire for u8 {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }

    fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        cursor.u8()
    }
}

/// Numbers of variable length.
macro_rules! numbers {
    ($($type:ident),+) => {$(
        impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) {
                put_u64(out, u64::from(*self));
            }

            fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
                cursor.$type()
            }
        }
    )+};
}

numbers!(u32, u64);

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        put_flags(out, [*self]);
    }

    fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        get_flags(cursor, "reserved bits are in use").map(|[flag]| flag)
    }
}

impl Wire for TaskId {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        cursor.u32().map(Self)
    }
}

impl Wire for Box<[u8]> {
    fn put(&self, out: &mut Vec<u8>) {
        put_u64(out, self.len() as u64);
        out.extend_from_slice(self);
    }

    fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        cursor.bytes().map(Into::into)
    }
}

impl Wire for Vec<Box<[u8]>> {
    fn put(&self, out: &mut Vec<u8>) {
        put_list(out, self, Wire::put);
    }

    fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        get_list(cursor, 1, Wire::get)
    }
}

impl Wire for Vec<(String, String)> {
    fn put(&self, out: &mut Vec<u8>) {
        put_list(out, self, |(first, second), out| {
            first.put(out);
            second.put(out);
        });
    }

    fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        get_list(cursor, 2, |cursor| Ok((Wire::get(cursor)?, Wire::get(cursor)?)))
    }
}

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_u64(out, self.len() as u64);
        out.extend_from_slice(self.as_bytes());
    }

    fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let bytes = cursor.bytes()?;
        str::from_utf8(bytes).map(str::to_owned).map_err(|_| Malformed("a name is not UTF-8"))
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.is_some()));
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        Ok(if bool::get(cursor)? { Some(T::get(cursor)?) } else { None })
    }
}
