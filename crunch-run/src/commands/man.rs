//! Writes the manual page from the flags of the program and its subcommands.

use std::io::{self, Write};

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::commands::cache;
use crate::commands::check;
use crate::commands::resume;
use crate::flags::Flags;

/// Writes roff for man(1).
pub fn write(out: &mut impl Write) -> io::Result<()> {
    Man::new(Flags::command()).render(out)?;
    let mut subcommands = [
        resume::Flags::command(),
        check::Flags::command(),
        cache::Flags::command().disable_help_subcommand(true),
    ];
    for subcommand in &mut subcommands {
        // Sets the full names of nested subcommands.
        subcommand.build();
        let verbs: Vec<&Command> = subcommand.get_subcommands().collect();
        match verbs.is_empty() {
            true => section(subcommand, out)?,
            false => verbs.into_iter().try_for_each(|verb| section(verb, out))?,
        }
    }
    Ok(())
}

/// Writes a subcommand as one section.
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
            // Already at the top of the page.
            _ if line.starts_with(".ie ") || line.starts_with(".el ") => {}
            _ if line.starts_with(".SH ") => writeln!(out, ".PP")?,
            line => writeln!(out, "{line}")?,
        }
    }
    Ok(())
}
