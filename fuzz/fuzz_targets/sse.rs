#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| playhouse_fuzz::checks::sse(data));
