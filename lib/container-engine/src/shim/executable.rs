//! Reads the first bytes of a file: its format and its interpreter.

use std::fs::{self, File};

use super::image_file;

/// Whether this node runs programs of foreign formats, for example by emulating other processors.
pub fn foreign_formats() -> bool {
    fs::read_dir("/proc/sys/fs/binfmt_misc")
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| entry.file_name() != "register" && entry.file_name() != "status")
}

/// The start of the program, where the container's user may read it.
pub fn head(program: &File) -> Option<Vec<u8>> {
    image_file::read(program, 64 << 10).ok().flatten()
}

/// A script that names its interpreter, or a program for this processor.
pub fn is_program(head: &[u8]) -> bool {
    const MACHINES: &[u16] = match std::env::consts::ARCH.as_bytes() {
        // Each with its 32-bit sibling, which the kernel may run too.
        b"x86_64" => &[62, 3],
        b"aarch64" => &[183, 40],
        _ => &[],
    };
    if head.starts_with(b"#!") {
        return true;
    }
    let machine = head
        .get(18..20)
        .and_then(|b| Some(u16::from_le_bytes(b.try_into().ok()?)));
    head.starts_with(b"\x7fELF")
        && (MACHINES.is_empty() || machine.is_some_and(|m| MACHINES.contains(&m)))
}

/// The interpreter in a script's first line or an ELF file's header.
pub fn interpreter(head: &[u8]) -> Option<String> {
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|b| *b == b'\n').next()?;
        return String::from_utf8_lossy(line)
            .split_whitespace()
            .next()
            .map(str::to_owned);
    }
    elf_interpreter(head)
}

/// The PT_INTERP string of a little-endian 64-bit ELF file.
fn elf_interpreter(head: &[u8]) -> Option<String> {
    const PT_INTERP: u32 = 3;
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let u64_at = |at: usize| Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?));
    let u16_at = |at: usize| Some(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?));
    let table = usize::try_from(u64_at(0x20)?).ok()?;
    let (size, count) = (usize::from(u16_at(0x36)?), usize::from(u16_at(0x38)?));
    (0..count).find_map(|i| {
        let entry = table.checked_add(size.checked_mul(i)?)?;
        let kind = u32::from_le_bytes(head.get(entry..entry + 4)?.try_into().ok()?);
        if kind != PT_INTERP {
            return None;
        }
        let offset = usize::try_from(u64_at(entry + 8)?).ok()?;
        let length = usize::try_from(u64_at(entry + 32)?).ok()?;
        let text = head.get(offset..offset.checked_add(length)?)?;
        Some(
            String::from_utf8_lossy(text)
                .trim_end_matches('\0')
                .to_owned(),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_other_machines_are_none() {
        let me = image_file::find(&std::env::current_exe().unwrap()).unwrap();
        let me = head(&me).unwrap();
        assert!(is_program(&me));
        assert!(is_program(b"#!/bin/sh\n"));
        assert!(!is_program(b"echo no first line\n"));
        assert!(!is_program(b""));
        let mut other = me;
        // IBM S/390
        other[18..20].copy_from_slice(&22u16.to_le_bytes());
        assert!(!is_program(&other));
    }

    #[test]
    fn interpreters_are_named() {
        assert_eq!(
            interpreter(b"#! /opt/bin/python3 -u\n").as_deref(),
            Some("/opt/bin/python3")
        );
        // A dynamically linked program: the test binary.
        let me = image_file::find(&std::env::current_exe().unwrap()).unwrap();
        let loader = interpreter(&head(&me).unwrap());
        assert!(loader.is_none_or(|l| l.starts_with("/lib") && l.contains("ld-")));
        assert_eq!(elf_interpreter(b"\x7fELF\x02\x01"), None);
    }
}
