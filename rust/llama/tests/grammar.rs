//! Grammars on the demo model's vocabulary, held to llama.cpp's own.

use std::time::Instant;

use llama_cpp_2::sampling::LlamaSampler;

use super::demo;
use crate::error::Error;
use crate::grammar::check_schema;
use crate::llama::grammar::convert;

#[test]
fn probe_properties() {
    for n in [64, 128, 256] {
        let names: Vec<String> = (0..n).map(|i| format!("\"p{i}\": {{}}")).collect();
        let schema = format!("{{\"properties\": {{{}}}}}", names.join(","));
        let started = Instant::now();
        let gbnf = convert(&schema, &check_schema(&schema).unwrap()).unwrap();
        println!("{n}: {:?} {} bytes", started.elapsed(), gbnf.len());
        let started = Instant::now();
        let read = demo().json_schema(&schema);
        println!("{n}: {:?} {:?}", started.elapsed(), read.is_ok());
    }
}
