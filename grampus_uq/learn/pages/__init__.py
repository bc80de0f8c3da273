"""HTML pages of the reports: one frame, one style sheet, one chart; Jinja2 templates, nothing loaded from elsewhere."""

from __future__ import annotations

from grampus_uq.learn.pages.page import printable, render_page, write_page

__all__ = ["printable", "render_page", "write_page"]
