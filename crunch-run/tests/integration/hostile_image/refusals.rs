//! Layers that are refused: one row for each thing that no image needs.

use tar::EntryType;

use crate::image_lab::{Tar, dir, entry, file, hard_link, link, long_name, pax};

/// Name, content of the layer, and the error.
pub type Refusal = (&'static str, Box<dyn Fn(&mut Tar, &str)>, &'static str);

fn refusal(
    what: &'static str,
    build: impl Fn(&mut Tar, &str) + 'static,
    words: &'static str,
) -> Refusal {
    (what, Box::new(build), words)
}

/// Words of the one refusal that needs a file system.
pub const ONLY_BY_A_FILE_SYSTEM: &str = "has the extended attribute";

/// A file of one byte with these attributes.
fn raw_pax(tar: &mut Tar, attributes: &[u8]) {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(EntryType::XHeader);
    header.set_path("attributes").unwrap();
    header.set_size(attributes.len() as u64);
    header.set_cksum();
    tar.append(&header, attributes).unwrap();
    file(tar, "file", b"x");
}

fn file_with(tar: &mut Tar, attributes: &[(&str, &[u8])]) {
    pax(tar, attributes);
    file(tar, "file", b"x");
}

pub fn all() -> Vec<Refusal> {
    let out = "leads out of the image";
    let through = "goes through \"way\", which is not a directory of this layer";
    let hides_nothing = "hides no file name";
    vec![
        refusal("..", |t, _| file(t, "../../../outside/evil", b"x"), out),
        refusal(
            ".. behind a directory",
            |t, _| file(t, "a/../../../../outside/evil", b"x"),
            out,
        ),
        refusal(
            "absolute and ..",
            |t, _| file(t, "/../../../outside/evil", b"x"),
            out,
        ),
        refusal(
            "a directory ..",
            |t, _| dir(t, "../../../outside/evil/"),
            out,
        ),
        refusal(
            ".. in an attribute",
            |t, _| {
                pax(t, &[("path", b"../../../outside/evil")]);
                file(t, "harmless", b"x");
            },
            out,
        ),
        refusal(
            ".. in a long name",
            |t, _| {
                long_name(
                    t,
                    format!("{}{}evil", "d/".repeat(90), "../".repeat(95)).as_bytes(),
                );
                file(t, "harmless", b"x");
            },
            out,
        ),
        refusal(
            "a file through a link out",
            |t, outside| {
                link(t, "way", outside);
                file(t, "way/evil", b"x");
            },
            through,
        ),
        refusal(
            "a file through a link that stays inside",
            |t, _| {
                dir(t, "bin/");
                link(t, "way", "bin");
                file(t, "way/evil", b"x");
            },
            through,
        ),
        refusal(
            "a directory through a relative link out",
            |t, _| {
                link(t, "way", "../../../outside");
                dir(t, "way/evil/");
            },
            through,
        ),
        refusal(
            "a directory where a link out is, and then in",
            |t, outside| {
                link(t, "way", outside);
                hard_link(t, "other", "way/victim");
            },
            through,
        ),
        refusal(
            "a whiteout through a link out",
            |t, outside| {
                link(t, "way", outside);
                file(t, "way/.wh.victim", b"");
            },
            through,
        ),
        refusal(
            "an opaque mark through a link out",
            |t, outside| {
                link(t, "way", outside);
                file(t, "way/.wh..wh..opq", b"");
            },
            through,
        ),
        refusal(
            "a path through a file",
            |t, _| {
                file(t, "way", b"x");
                file(t, "way/evil", b"x");
            },
            through,
        ),
        refusal(
            "a hard link out",
            |t, _| hard_link(t, "mine", "../../../outside/victim"),
            out,
        ),
        refusal(
            "an absolute hard link",
            |t, outside| hard_link(t, "mine", &format!("{outside}/victim")),
            "which is not in the layer",
        ),
        refusal(
            "a hard link to itself",
            |t, _| {
                file(t, "me", b"x");
                hard_link(t, "me", "me");
            },
            "which is not in the layer",
        ),
        refusal(
            "a hard link to a directory",
            |t, _| {
                dir(t, "etc/");
                hard_link(t, "mine", "etc");
            },
            "is a hard link to \"etc\", which cannot have any",
        ),
        refusal(
            "a hard link to the root",
            |t, _| hard_link(t, "mine", "/"),
            "which is not in the layer",
        ),
        refusal(
            "a whiteout of ..",
            |t, _| file(t, "a/.wh...", b""),
            hides_nothing,
        ),
        refusal(
            "a whiteout of .",
            |t, _| file(t, "a/.wh..", b""),
            hides_nothing,
        ),
        refusal(
            "a whiteout of nothing",
            |t, _| file(t, "a/.wh.", b""),
            hides_nothing,
        ),
        refusal(
            "a whiteout outside",
            |t, _| file(t, "../../../outside/.wh.victim", b""),
            out,
        ),
        refusal(
            "a file in the place of a full directory",
            |t, _| {
                file(t, "etc/name", b"x");
                file(t, "etc", b"x");
            },
            "takes the place of a directory that is not empty",
        ),
        refusal(
            "a link without a target",
            |t, _| entry(t, "way", EntryType::Symlink, |_| {}),
            "is a symbolic link without a target",
        ),
        refusal(
            "a name that is too long",
            |t, _| {
                long_name(t, &[b'x'; 300]);
                file(t, "harmless", b"x");
            },
            "has a name that is too long",
        ),
        refusal(
            "a path that is too long",
            |t, _| {
                long_name(t, "dir/".repeat(1100).as_bytes());
                file(t, "harmless", b"x");
            },
            "has a name that is too long",
        ),
        refusal(
            "a path that is too deep to be removed",
            |t, _| {
                long_name(t, "d/".repeat(2000).as_bytes());
                dir(t, "harmless");
            },
            "lies more than 256 directories deep",
        ),
        refusal(
            "a name with a zero in it",
            |t, _| {
                pax(t, &[("path", b"etc/pass\0wd")]);
                file(t, "harmless", b"x");
            },
            "no file system takes",
        ),
        refusal(
            "a target with a zero in it",
            |t, _| {
                pax(t, &[("linkpath", b"etc/pass\0wd")]);
                link(t, "way", "harmless");
            },
            "no file system takes",
        ),
        refusal(
            "an attribute that none can set",
            |t, _| {
                let name = format!("SCHILY.xattr.user.{}", "x".repeat(300));
                pax(t, &[(&name, b"x")]);
                file(t, "harmless", b"x");
            },
            ONLY_BY_A_FILE_SYSTEM,
        ),
        refusal(
            "attributes that end early",
            |t, _| raw_pax(t, b"30 SCHILY.xattr.user.a=b\n"),
            "cannot be unpacked: PAX error",
        ),
        refusal(
            "attributes with a rest",
            |t, _| raw_pax(t, b"6 a=b\nrest"),
            "has attributes that end early",
        ),
        refusal(
            "a size that is none",
            |t, _| file_with(t, &[("size", b"x")]),
            "has an attribute size that is no number",
        ),
        refusal(
            "a time that is none",
            |t, _| file_with(t, &[("mtime", b"x")]),
            "has a time that is none",
        ),
        refusal(
            "a sparse file of the future",
            |t, _| file_with(t, &[("GNU.sparse.major", b"2"), ("GNU.sparse.minor", b"0")]),
            "is a sparse file of a form that is not supported",
        ),
        refusal(
            "a sparse file without a length",
            |t, _| file_with(t, &[("GNU.sparse.map", b"0,1")]),
            "is a sparse file whose length is missing",
        ),
        refusal(
            "a sparse file with more parts than content",
            |t, _| file_with(t, &[("GNU.sparse.map", b"0,5"), ("GNU.sparse.size", b"9")]),
            "is a sparse file whose map does not fit its content",
        ),
        refusal(
            "a sparse file with a part behind its end",
            |t, _| file_with(t, &[("GNU.sparse.map", b"9,1"), ("GNU.sparse.size", b"9")]),
            "is a sparse file whose map does not fit its content",
        ),
        refusal(
            "a sparse file with parts in disorder",
            |t, _| {
                file_with(
                    t,
                    &[("GNU.sparse.map", b"5,1,4,0"), ("GNU.sparse.size", b"9")],
                )
            },
            "is a sparse file whose map does not fit its content",
        ),
        refusal(
            "a kind that is none",
            |t, _| entry(t, "odd", EntryType::new(b'M'), |_| {}),
            "is of a kind that is not supported (type 'M')",
        ),
        refusal(
            "a name that fills the memory",
            |t, _| long_name(t, &vec![b'x'; 3 << 20]),
            "take more than 1 MiB",
        ),
        refusal(
            "attributes that fill the memory",
            |t, _| pax(t, &[("comment", &vec![b'x'; 3 << 20])]),
            "take more than 1 MiB",
        ),
    ]
}
