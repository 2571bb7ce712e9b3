//! `prctl`: settings of a process's memory as a whole.

use crate::{
    space::{Error, ExecGain, Space},
    thp::HugeDisable,
};
use quire_arch::Platform;

const PR_SET_THP_DISABLE: i32 = 41;
const PR_GET_THP_DISABLE: i32 = 42;
const THP_EXCEPT_ADVISED: u64 = 2;
const PR_SET_MDWE: i32 = 65;
const PR_GET_MDWE: i32 = 66;
const REFUSE_EXEC_GAIN: u64 = 1;
const NO_INHERIT: u64 = 2;

pub(super) fn prctl<P: Platform>(space: &Space<'_, P>, args: [u64; 6]) -> Result<u64, Error> {
    let [option, second, third, fourth, fifth, _] = args;
    match option as i32 {
        PR_SET_THP_DISABLE => set_huge_disable(space, second != 0, third, [fourth, fifth]),
        PR_GET_THP_DISABLE | PR_GET_MDWE if [second, third, fourth, fifth] != [0; 4] => Err(Error::BadFlags),
        PR_GET_THP_DISABLE => Ok(match space.prctl().huge_disable() {
            HugeDisable::No => 0,
            HugeDisable::Completely => 1,
            HugeDisable::ExceptAdvised => 1 | THP_EXCEPT_ADVISED,
        }),
        PR_SET_MDWE => set_mdwe(space, second, [third, fourth, fifth]),
        PR_GET_MDWE => Ok(match space.prctl().exec_gain() {
            ExecGain::Allowed => 0,
            ExecGain::Refused => REFUSE_EXEC_GAIN,
            ExecGain::RefusedNotInherited => REFUSE_EXEC_GAIN | NO_INHERIT,
        }),
        _ => Err(Error::NotSupported),
    }
}

fn set_huge_disable<P: Platform>(
    space: &Space<'_, P>,
    disable: bool,
    flags: u64,
    rest: [u64; 2],
) -> Result<u64, Error> {
    let wanted = match (disable, flags) {
        (false, 0) => HugeDisable::No,
        (true, 0) => HugeDisable::Completely,
        (true, THP_EXCEPT_ADVISED) => HugeDisable::ExceptAdvised,
        _ => return Err(Error::BadFlags),
    };
    if rest != [0; 2] {
        return Err(Error::BadFlags);
    }
    space.prctl().set_huge_disable(wanted);
    Ok(0)
}

fn set_mdwe<P: Platform>(space: &Space<'_, P>, bits: u64, rest: [u64; 3]) -> Result<u64, Error> {
    if rest != [0; 3] {
        return Err(Error::BadFlags);
    }
    let gain = match bits {
        0 => ExecGain::Allowed,
        REFUSE_EXEC_GAIN => ExecGain::Refused,
        bits if bits == REFUSE_EXEC_GAIN | NO_INHERIT => ExecGain::RefusedNotInherited,
        // Also the second without the first.
        _ => return Err(Error::BadFlags),
    };
    space.prctl().set_exec_gain(gain).map(|()| 0)
}
