//! `prctl`: what a process says about its memory as a whole.

use crate::{Error, ExecGain, Space};
use quire_arch::Platform;

const PR_SET_MDWE: i32 = 65;
const PR_GET_MDWE: i32 = 66;
const REFUSE_EXEC_GAIN: u64 = 1;
const NO_INHERIT: u64 = 2;

pub(super) fn prctl<P: Platform>(space: &Space<'_, P>, args: [u64; 6]) -> Result<u64, Error> {
    let [option, second, third, fourth, fifth, _] = args;
    match option as i32 {
        PR_SET_MDWE => set_mdwe(space, second, [third, fourth, fifth]),
        PR_GET_MDWE if [second, third, fourth, fifth] != [0; 4] => Err(Error::BadFlags),
        PR_GET_MDWE => Ok(match space.exec_gain() {
            ExecGain::Allowed => 0,
            ExecGain::Refused => REFUSE_EXEC_GAIN,
            ExecGain::RefusedNotInherited => REFUSE_EXEC_GAIN | NO_INHERIT,
        }),
        _ => Err(Error::NotSupported),
    }
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
    space.set_exec_gain(gain).map(|()| 0)
}
