//! The manual page, from the same flags as the program's help: running a container, and what else the program does.

use std::io::{self, Write};

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::flags::Flags;
use crate::{cache, check, resume};

/// In roff, for man(1).
pub fn write(out: &mut impl Write) -> io::Result<()> {
    Man::new(Flags::command()).render(out)?;
    let mut errands = [
        resume::Flags::command(),
        check::Flags::command(),
        cache::command::Flags::command().disable_help_subcommand(true),
    ];
    for errand in &mut errands {
        // The verbs below it learn their whole names.
        errand.build();
        let verbs: Vec<&Command> = errand.get_subcommands().collect();
        match verbs.is_empty() {
            true => section(errand, out)?,
            false => verbs.into_iter().try_for_each(|verb| section(verb, out))?,
        }
    }
    Ok(())
}

/// What would be a page of its own, as one section.
fn section(command: &Command, out: &mut impl Write) -> io::Result<()> {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    writeln!(out, ".SH {}", name.to_uppercase().replace('-', "\\-"))?;
    let page = Man::new(command.clone());
    let mut text = Vec::new();
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    for line in String::from_utf8_lossy(&text).lines() {
        match line {
            // Said at the top already.
            _ if line.starts_with(".ie ") || line.starts_with(".el ") => {}
            _ if line.starts_with(".SH ") => writeln!(out, ".PP")?,
            line => writeln!(out, "{line}")?,
        }
    }
    Ok(())
}
