//! How is a snapshot shown on a terminal, and how is the terminal given back?
//!
//! Whatever ends the screen, the terminal is put back as it was: a key, an error, a panic (the hook that ratatui
//! installs) or a signal, which only sets a flag that the loop looks at.

use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::lines::{self, Section};
use super::{Monitor, snapshot::Snapshot};

/// From this width on, the run is beside the machine.
const WIDE: u16 = 110;
/// A signal is noticed after this long at the latest.
const SLICE: Duration = Duration::from_millis(100);

/// As if the signal had come that says so.
const HUNG_UP: u8 = 129;

/// How long the first frame stays.
const FIRST: Duration = Duration::from_millis(250);

/// What the user did to the view.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct View {
    /// Lines that are above the upper edge.
    pub(crate) scroll: u16,
    /// Whether there is colour. Nothing is said by it alone.
    pub(crate) colour: bool,
}

/// Shows the screen until the user has seen enough.
pub(crate) fn run(mut monitor: Monitor, interval: Duration, colour: bool) -> io::Result<u8> {
    let signal = signals()?;
    // Elsewhere crossterm waits, and where stdin is no terminal, it asks the one that the program belongs to.
    let keys_from_stdin = cfg!(unix) && io::stdin().is_terminal();
    let mut terminal = ratatui::try_init()?;
    let shown = (|| {
        let mut view = View { scroll: 0, colour };
        let mut snapshot = monitor.sample();
        // A share takes two readings: the first frame, which has none yet, does not stay long.
        let mut due = Instant::now() + interval.min(FIRST);
        loop {
            terminal.draw(|frame| draw(frame, &snapshot, &mut view))?;
            let left = due.saturating_duration_since(Instant::now());
            if keys_from_stdin && gone(left.min(SLICE)) {
                return Ok(HUNG_UP);
            }
            if event::poll(if keys_from_stdin { Duration::ZERO } else { left.min(SLICE) })?
                && let Event::Key(key) = event::read()?
                && pressed(key, &mut view)
            {
                return Ok(0);
            }
            match signal.load(Ordering::Relaxed) {
                0 => {}
                number => return Ok(128 + number as u8),
            }
            if Instant::now() >= due {
                snapshot = monitor.sample();
                // From now on, so that a machine that was asleep is not asked for all it missed.
                due = Instant::now() + interval;
            }
        }
    })();
    // Also after an error; the first of two is the one to tell.
    let restored = ratatui::try_restore();
    shown.and_then(|code| restored.map(|()| code))
}

/// Waits for a key, and says whether the terminal was taken away meanwhile: a window that was closed, a connection that
/// broke. Not everybody who takes a terminal away sends a signal, and crossterm reads from one that is gone for ever.
#[cfg(unix)]
fn gone(left: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
    // A signal ends the wait early, which is as good.
    let _ = poll(&mut fds, Some(&timeout));
    fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
}

#[cfg(not(unix))]
fn gone(_: Duration) -> bool {
    false
}

/// The number of the signal that came; 0: none did.
fn signals() -> io::Result<Arc<AtomicUsize>> {
    let came = Arc::new(AtomicUsize::new(0));
    #[cfg(unix)]
    {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::flag::register_usize(signal, Arc::clone(&came), signal as usize)?;
        }
    }
    Ok(came)
}

/// Whether it ends the screen.
fn pressed(key: KeyEvent, view: &mut View) -> bool {
    if key.kind == KeyEventKind::Release {
        return false;
    }
    match key.code {
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => return true,
        KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
        KeyCode::Down | KeyCode::Char('j') => view.scroll = view.scroll.saturating_add(1),
        KeyCode::Up | KeyCode::Char('k') => view.scroll = view.scroll.saturating_sub(1),
        KeyCode::PageDown | KeyCode::Char(' ') => view.scroll = view.scroll.saturating_add(10),
        KeyCode::PageUp => view.scroll = view.scroll.saturating_sub(10),
        KeyCode::Home | KeyCode::Char('g') => view.scroll = 0,
        KeyCode::End | KeyCode::Char('G') => view.scroll = u16::MAX,
        _ => {}
    }
    false
}

/// Draws a snapshot. `view` is put right where it has scrolled too far.
pub(crate) fn draw(frame: &mut Frame<'_>, snapshot: &Snapshot, view: &mut View) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)])
            .areas(frame.area());
    let columns = if body.width >= WIDE {
        let [left, right] =
            Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).spacing(2).areas(body);
        let mut machine = lines::gpus(snapshot, usize::from(right.width));
        machine.push(lines::host(snapshot, usize::from(right.width)));
        vec![(left, vec![lines::run(snapshot, usize::from(left.width))]), (right, machine)]
    } else {
        vec![(body, lines::all(snapshot, usize::from(body.width)))]
    };
    let columns: Vec<(Rect, Vec<Line<'static>>)> =
        columns.into_iter().map(|(area, sections)| (area, column(sections, area.width))).collect();
    let most = columns.iter().map(|(_, lines)| lines.len()).max().unwrap_or(0);
    let hidden = most.saturating_sub(usize::from(body.height));
    view.scroll = view.scroll.min(hidden as u16);
    for (area, mut lines) in columns {
        if !view.colour {
            lines.iter_mut().flat_map(|line| &mut line.spans).for_each(|span| {
                span.style = Style { fg: None, bg: None, ..span.style };
            });
        }
        frame.render_widget(Paragraph::new(lines).scroll((view.scroll, 0)), area);
    }
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let name = Span::styled("feedwater monitor", bold);
    frame.render_widget(
        Line::from(vec![name, format!("   {} UTC", clock(snapshot.at_unix_millis)).into()]),
        head,
    );
    let more = match (hidden, hidden - usize::from(view.scroll)) {
        (0, _) => String::new(),
        (_, 0) => " · ↑ more above".to_owned(),
        (_, below) => format!(" · ↓ {below} more lines"),
    };
    let dim = Style::new().add_modifier(Modifier::DIM);
    frame.render_widget(Line::from(Span::styled(format!("q quit{more}"), dim)), foot);
}

/// Sections one below the other, each under its title.
fn column(sections: Vec<Section>, width: u16) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for section in sections {
        let rest = usize::from(width).saturating_sub(section.title.chars().count() + 4);
        lines.push(Line::from(vec![
            Span::styled("── ", Style::new().add_modifier(Modifier::DIM)),
            Span::styled(section.title, Style::new().add_modifier(Modifier::BOLD)),
            Span::styled(format!(" {}", "─".repeat(rest)), Style::new().add_modifier(Modifier::DIM)),
        ]));
        lines.extend(section.lines);
    }
    lines
}

/// The time of day. In UTC, since the standard library knows no other.
fn clock(unix_millis: u64) -> String {
    let seconds = unix_millis / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}
