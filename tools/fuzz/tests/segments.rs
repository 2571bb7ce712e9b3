//! Random inputs of which every second step is about segments of SysV shared memory.

use quire_fuzz::memory_calls;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

#[test]
fn segments_pass_random_steps() {
    let inputs: u64 = std::env::var("QUIRE_FUZZ_INPUTS").map_or(60, |text| text.parse().expect("a number"));
    for input in 0..inputs {
        let mut random = Random(0x9e37_79b9 + input);
        let mut bytes = vec![random.next() as u8];
        for _ in 0..120 {
            let cpu = random.next() as u8 & 0x80;
            // Steps take some bytes each; what one leaves is the next one.
            bytes.push(cpu | 63);
            bytes.extend((0..5).map(|_| random.next() as u8));
            bytes.push(random.next() as u8);
            bytes.extend((0..3).map(|_| random.next() as u8));
        }
        memory_calls(&bytes, false);
    }
}
