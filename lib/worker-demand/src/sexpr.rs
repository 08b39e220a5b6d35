//! Parses S-expressions: lists, texts, whole numbers and keywords, the part of Lisp that is only
//! data.
//!
//! The reader of Lisp can also run code (`#.`), create symbols and build circular data. Here each
//! of these is an error with its line and column. The work is bounded by the length of the text.

use std::fmt;

/// Maximum nesting of lists; the format needs three.
const MAX_DEPTH: usize = 8;
/// Maximum number of atoms and lists.
const MAX_NODES: usize = 4096;

/// A position in a text, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    pub line: usize,
    /// Column, in characters.
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// An S-expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sexpr {
    Number(u64),
    Text(String),
    /// In lower case, without the colon.
    Keyword(String),
    /// NIL is the empty list.
    List(Vec<Node>),
}

/// An S-expression and where it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub position: Position,
    pub sexpr: Sexpr,
}

impl Sexpr {
    /// Name of the kind, for error messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::Keyword(_) => "a keyword",
            Self::List(_) => "a list",
        }
    }
}

/// Why a text is not an S-expression of this subset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxError {
    #[error("this list is not closed: the file was cut, or is only half written")]
    OpenList,
    #[error("this text is not closed: the file was cut, or is only half written")]
    OpenText,
    #[error("this closes a list that was never opened")]
    Unopened,
    #[error("{0:?} would make Lisp do more than read data, and is not allowed")]
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
    #[error("lists are nested deeper than {MAX_DEPTH}")]
    TooDeep,
    #[error("the file has more than {MAX_NODES} atoms and lists")]
    TooMany,
}

/// Parses all S-expressions of `text`.
pub fn parse(text: &str) -> Result<Vec<Node>, (Position, SyntaxError)> {
    let mut reader = Reader {
        rest: text.chars(),
        next: None,
        position: Position { line: 1, column: 0 },
        count: 0,
    };
    reader.advance();
    reader.read_all()
}

struct Reader<'a> {
    rest: std::str::Chars<'a>,
    next: Option<char>,
    /// Position of `next`.
    position: Position,
    count: usize,
}

impl Reader<'_> {
    fn advance(&mut self) {
        match self.next {
            Some('\n') => {
                self.position = Position {
                    line: self.position.line + 1,
                    column: 1,
                };
            }
            _ => self.position.column += 1,
        }
        self.next = self.rest.next();
    }

    fn read_all(&mut self) -> Result<Vec<Node>, (Position, SyntaxError)> {
        let mut done = Vec::new();
        let mut open: Vec<(Position, Vec<Node>)> = Vec::new();
        while let Some(next) = self.next {
            let position = self.position;
            let sexpr = match next {
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
                    if open.len() == MAX_DEPTH {
                        return Err((position, SyntaxError::TooDeep));
                    }
                    open.push((position, Vec::new()));
                    continue;
                }
                ')' => {
                    self.advance();
                    let (position, list) = open.pop().ok_or((position, SyntaxError::Unopened))?;
                    self.push(&mut done, &mut open, position, Sexpr::List(list))?;
                    continue;
                }
                '"' => Sexpr::Text(self.text(position)?),
                '#' | '\'' | '`' | ',' | '|' | '\\' => {
                    return Err((position, SyntaxError::Macro(next)));
                }
                c if c.is_control() || c.is_whitespace() => {
                    return Err((position, SyntaxError::Character(c)));
                }
                _ => {
                    let token = self.token();
                    atom(&token).map_err(|problem| (position, problem))?
                }
            };
            self.push(&mut done, &mut open, position, sexpr)?;
        }
        match open.first() {
            None => Ok(done),
            Some((position, _)) => Err((*position, SyntaxError::OpenList)),
        }
    }

    fn push(
        &mut self,
        done: &mut Vec<Node>,
        open: &mut [(Position, Vec<Node>)],
        position: Position,
        sexpr: Sexpr,
    ) -> Result<(), (Position, SyntaxError)> {
        self.count += 1;
        if self.count > MAX_NODES {
            return Err((position, SyntaxError::TooMany));
        }
        let list = open.last_mut().map_or(done, |(_, list)| list);
        list.push(Node { position, sexpr });
        Ok(())
    }

    /// Reads a text up to its closing quote. A backslash escapes the next character; there are no
    /// other escapes.
    fn text(&mut self, position: Position) -> Result<String, (Position, SyntaxError)> {
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
        Err((position, SyntaxError::OpenText))
    }

    /// Reads a token up to a character that ends it in Lisp.
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

fn atom(token: &str) -> Result<Sexpr, SyntaxError> {
    let symbol = || SyntaxError::Symbol(token.chars().take(40).collect());
    if token.eq_ignore_ascii_case("nil") {
        return Ok(Sexpr::List(Vec::new()));
    }
    if let Some(name) = token.strip_prefix(':') {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_*+/.".contains(c);
        return match !name.is_empty() && name.chars().all(plain) {
            true => Ok(Sexpr::Keyword(name.to_ascii_lowercase())),
            false => Err(symbol()),
        };
    }
    let digits = token.strip_prefix(['+', '-']).unwrap_or(token);
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(symbol());
    }
    let short = || token.chars().take(40).collect();
    if token.starts_with('-') {
        return Err(SyntaxError::Negative(short()));
    }
    if !token.chars().all(|c| c.is_ascii_digit()) {
        return Err(SyntaxError::NotWhole(short()));
    }
    // All digits, so only the size can be wrong.
    token
        .parse()
        .map(Sexpr::Number)
        .map_err(|_| SyntaxError::TooLarge(short()))
}
