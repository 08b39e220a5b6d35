//! Lists, texts, whole numbers and keywords: the part of Lisp's syntax that is data and nothing else.
//!
//! Lisp's own reader can be made to run programs (`#.`), to make symbols, to build circles. This one cannot: each of
//! these is an error with its line and column. Its work is bounded by the length of the text, whatever is in it.

use std::fmt;

/// Lists in lists; the format needs three.
const DEEPEST: usize = 8;
/// Atoms and lists in all.
const MOST: usize = 4096;

/// A place in a text, both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Line.
    pub line: usize,
    /// Column, in characters.
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// A piece of data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Datum {
    Number(u64),
    Text(String),
    /// In lower case, without its colon.
    Keyword(String),
    /// NIL is the empty one.
    List(Vec<Node>),
}

/// A piece of data and where it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub place: Place,
    pub datum: Datum,
}

impl Datum {
    /// For sentences.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::Keyword(_) => "a keyword",
            Self::List(_) => "a list",
        }
    }
}

/// What is not data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Syntax {
    #[error("this list is not closed: the file was cut, or is only half written")]
    OpenList,
    #[error("this text is not closed: the file was cut, or is only half written")]
    OpenText,
    #[error("this closes a list that was never opened")]
    Unopened,
    #[error("{0:?} would have Lisp do more than read data, and is not allowed")]
    Macro(char),
    #[error(
        "{0:?} is a symbol, and only keywords like :timestamp, texts, whole numbers, lists and nil are allowed"
    )]
    Symbol(String),
    #[error("{0} is negative, which no number here can be")]
    Negative(String),
    #[error("{0:?} is not a whole number")]
    NotWhole(String),
    #[error("{0} is too large")]
    TooLarge(String),
    #[error("{0:?} is not allowed outside of a text")]
    Character(char),
    #[error("lists are nested deeper than {DEEPEST}")]
    TooDeep,
    #[error("there are more than {MOST} things in the file")]
    TooMany,
}

/// All that stands in `text`, one after the other.
pub fn parse(text: &str) -> Result<Vec<Node>, (Place, Syntax)> {
    let mut reader = Reader {
        rest: text.chars(),
        next: None,
        place: Place { line: 1, column: 0 },
        count: 0,
    };
    reader.advance();
    reader.all()
}

struct Reader<'a> {
    rest: std::str::Chars<'a>,
    next: Option<char>,
    /// Of `next`.
    place: Place,
    count: usize,
}

impl Reader<'_> {
    fn advance(&mut self) {
        match self.next {
            Some('\n') => {
                self.place = Place {
                    line: self.place.line + 1,
                    column: 1,
                };
            }
            _ => self.place.column += 1,
        }
        self.next = self.rest.next();
    }

    fn all(&mut self) -> Result<Vec<Node>, (Place, Syntax)> {
        let mut done = Vec::new();
        let mut open: Vec<(Place, Vec<Node>)> = Vec::new();
        while let Some(next) = self.next {
            let place = self.place;
            let datum = match next {
                ' ' | '\t' | '\r' | '\n' | '\u{c}' => {
                    self.advance();
                    continue;
                }
                ';' => {
                    while self.next.is_some_and(|c| c != '\n') {
                        self.advance();
                    }
                    continue;
                }
                '(' => {
                    self.advance();
                    if open.len() == DEEPEST {
                        return Err((place, Syntax::TooDeep));
                    }
                    open.push((place, Vec::new()));
                    continue;
                }
                ')' => {
                    self.advance();
                    let (place, list) = open.pop().ok_or((place, Syntax::Unopened))?;
                    self.put(&mut done, &mut open, place, Datum::List(list))?;
                    continue;
                }
                '"' => Datum::Text(self.text(place)?),
                '#' | '\'' | '`' | ',' | '|' | '\\' => return Err((place, Syntax::Macro(next))),
                c if c.is_control() || c.is_whitespace() => {
                    return Err((place, Syntax::Character(c)));
                }
                _ => {
                    let token = self.token();
                    atom(&token).map_err(|problem| (place, problem))?
                }
            };
            self.put(&mut done, &mut open, place, datum)?;
        }
        match open.first() {
            None => Ok(done),
            Some((place, _)) => Err((*place, Syntax::OpenList)),
        }
    }

    fn put(
        &mut self,
        done: &mut Vec<Node>,
        open: &mut [(Place, Vec<Node>)],
        place: Place,
        datum: Datum,
    ) -> Result<(), (Place, Syntax)> {
        self.count += 1;
        if self.count > MOST {
            return Err((place, Syntax::TooMany));
        }
        let list = open.last_mut().map_or(done, |(_, list)| list);
        list.push(Node { place, datum });
        Ok(())
    }

    /// Up to the quote that closes it. A backslash takes the next character as it is; there are no other escapes.
    fn text(&mut self, place: Place) -> Result<String, (Place, Syntax)> {
        let mut text = String::new();
        self.advance();
        while let Some(c) = self.next {
            self.advance();
            match c {
                '"' => return Ok(text),
                '\\' => match self.next {
                    Some(c) => {
                        text.push(c);
                        self.advance();
                    }
                    None => break,
                },
                c => text.push(c),
            }
        }
        Err((place, Syntax::OpenText))
    }

    /// Up to where Lisp ends a token.
    fn token(&mut self) -> String {
        let mut token = String::new();
        while let Some(c) = self.next {
            if c.is_whitespace()
                || c.is_control()
                || matches!(c, '(' | ')' | '"' | ';' | '\'' | '`' | ',')
            {
                break;
            }
            token.push(c);
            self.advance();
        }
        token
    }
}

fn atom(token: &str) -> Result<Datum, Syntax> {
    let symbol = || Syntax::Symbol(token.chars().take(40).collect());
    if token.eq_ignore_ascii_case("nil") {
        return Ok(Datum::List(Vec::new()));
    }
    if let Some(name) = token.strip_prefix(':') {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_*+/.".contains(c);
        return match !name.is_empty() && name.chars().all(plain) {
            true => Ok(Datum::Keyword(name.to_ascii_lowercase())),
            false => Err(symbol()),
        };
    }
    let digits = token.strip_prefix(['+', '-']).unwrap_or(token);
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(symbol());
    }
    let short = || token.chars().take(40).collect();
    if token.starts_with('-') {
        return Err(Syntax::Negative(short()));
    }
    if !token.chars().all(|c| c.is_ascii_digit()) {
        return Err(Syntax::NotWhole(short()));
    }
    // All digits, so only its size can be wrong.
    token
        .parse()
        .map(Datum::Number)
        .map_err(|_| Syntax::TooLarge(short()))
}
