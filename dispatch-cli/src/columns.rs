//! Which columns of a table fit a terminal. Pure.

/// Space between two columns.
pub const GAP: usize = 2;

/// Removes columns, those in `drop_order` first to last, until each row fits `width` or no more of
/// them are left. A width of 0 is no width, as a terminal has that does not tell its size.
pub fn fit(header: &mut Vec<&str>, rows: &mut [Vec<String>], drop_order: &[&str], width: usize) {
    if width == 0 {
        return;
    }
    for title in drop_order {
        if total_width(header, rows) <= width {
            return;
        }
        let Some(index) = header.iter().position(|present| present == title) else {
            continue;
        };
        header.remove(index);
        for row in rows.iter_mut() {
            row.remove(index);
        }
    }
}

fn total_width(header: &[&str], rows: &[Vec<String>]) -> usize {
    let widths = header.iter().enumerate().map(|(index, title)| {
        let cells = rows.iter().map(|row| row[index].chars().count());
        cells.chain([title.chars().count()]).max().unwrap_or(0)
    });
    let count = header.len();
    widths.sum::<usize>() + GAP * count.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_give_way_in_their_order() {
        let order = ["UUID", "AGE", "NONE"];
        for (width, expected) in [
            (0, vec!["ID", "AGE", "UUID", "STATE"]),
            (25, vec!["ID", "AGE", "UUID", "STATE"]),
            (24, vec!["ID", "AGE", "STATE"]),
            (16, vec!["ID", "AGE", "STATE"]),
            (15, vec!["ID", "STATE"]),
            (3, vec!["ID", "STATE"]),
        ] {
            let mut header = vec!["ID", "AGE", "UUID", "STATE"];
            let row = ["12", "3 s", "abcdefg", "Running"];
            let mut rows = [row.map(str::to_owned).to_vec()];
            fit(&mut header, &mut rows, &order, width);
            assert_eq!(header, expected, "{width}");
            assert_eq!(rows[0].len(), expected.len());
            assert_eq!(rows[0].last().unwrap(), "Running");
        }
    }
}
