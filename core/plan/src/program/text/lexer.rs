//! Cutting a line into words, numbers and signs.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;

use super::TextError;

/// The rest of one line.
#[derive(Clone, Copy)]
pub(super) struct Line<'a> {
    pub(super) number: usize,
    rest: &'a str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Token<'a> {
    Word(&'a str),
    Number(i64),
    Sign(&'a str),
    End,
}

pub(super) type Parsed<T> = Result<T, TextError>;

impl<'a> Line<'a> {
    /// The line without its comment; `None` if nothing is left.
    pub(super) fn new(index: usize, text: &'a str) -> Option<Line<'a>> {
        let text = text.split('#').next().unwrap_or_default().trim();
        (!text.is_empty()).then_some(Line { number: index + 1, rest: text })
    }

    pub(super) fn peek(&self) -> Token<'a> {
        self.cut().0
    }

    pub(super) fn next(&mut self) -> Token<'a> {
        let (token, rest) = self.cut();
        self.rest = rest;
        token
    }

    /// Everything up to the end of the line.
    pub(super) fn remainder(&mut self) -> &'a str {
        core::mem::take(&mut self.rest).trim()
    }

    /// Takes the sign or word if it is next.
    pub(super) fn accept(&mut self, text: &str) -> bool {
        let is = matches!(self.peek(), Token::Sign(found) | Token::Word(found) if found == text);
        if is {
            self.next();
        }
        is
    }

    pub(super) fn expect(&mut self, text: &str) -> Parsed<()> {
        if self.accept(text) { Ok(()) } else { self.fail(&format!("`{text}`")) }
    }

    pub(super) fn word(&mut self, expected: &str) -> Parsed<&'a str> {
        match self.peek() {
            Token::Word(word) => {
                self.next();
                Ok(word)
            }
            _ => self.fail(expected),
        }
    }

    /// A number, with its sign, that fits.
    pub(super) fn number<T: TryFrom<i64>>(&mut self, expected: &str) -> Parsed<T> {
        let before = *self;
        let negative = self.accept("-");
        if let Token::Number(value) = self.peek()
            && let Ok(value) = T::try_from(if negative { -value } else { value })
        {
            self.next();
            return Ok(value);
        }
        before.fail(expected)
    }

    pub(super) fn end(&mut self) -> Parsed<()> {
        if self.peek() == Token::End { Ok(()) } else { self.fail("the end of the line") }
    }

    pub(super) fn fail<T>(&self, expected: &str) -> Parsed<T> {
        Err(TextError { line: self.number, expected: expected.to_string(), found: self.peek().to_string() })
    }

    pub(super) fn error(&self, expected: String, found: String) -> TextError {
        TextError { line: self.number, expected, found }
    }

    fn cut(&self) -> (Token<'a>, &'a str) {
        let text = self.rest.trim_start();
        let Some(first) = text.chars().next() else { return (Token::End, text) };
        let len = |belongs: fn(char) -> bool| text.find(|c| !belongs(c)).unwrap_or(text.len());
        if first.is_ascii_digit() {
            let (digits, rest) = text.split_at(len(|c| c.is_ascii_digit()));
            return (digits.parse().map_or(Token::Sign(digits), Token::Number), rest);
        }
        if first.is_alphabetic() {
            let (word, rest) = text.split_at(len(|c| c.is_alphanumeric() || c == '_'));
            return (Token::Word(word), rest);
        }
        let long = ["->", ".."].into_iter().find(|sign| text.starts_with(sign));
        let (sign, rest) = text.split_at(long.map_or(first.len_utf8(), str::len));
        (Token::Sign(sign), rest)
    }
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Word(text) | Token::Sign(text) => write!(f, "`{text}`"),
            Token::Number(number) => number.fmt(f),
            Token::End => f.write_str("the end of the line"),
        }
    }
}
