"""How Sphinx builds the pages that build.py has put together."""

import os

project = "Distributed training, step by step"
html_title = project
language = "en"
extensions = ["myst_nb"]
exclude_patterns = ["lessons.md"]  # a part of the landing page

# `course notebooks` has executed them.
nb_execution_mode = "off"
nb_merge_streams = True
nb_ipywidgets_js = {}  # would come from elsewhere, and no page shows a widget
myst_heading_anchors = 4  # links to headings, as in JupyterLab
myst_links_external_new_tab = True

smartquotes_action = "qe"  # but no dashes, as `--` begins an option
highlight_language = "text"  # where a text does not say which

html_theme = "sphinx_book_theme"
html_theme_options = {
    "show_toc_level": 2,
    "use_fullscreen_button": False,
    "use_sidenotes": False,
    "footer_content_items": "last-updated.html",  # the theme would name an author
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_context = {"default_mode": "auto"}  # light or dark: as the reader has it
html_static_path = ["static"]
html_favicon = "static/favicon.svg"
html_css_files = ["course.css"]
html_js_files = ["course.js"]
html_use_index = False
html_show_sphinx = False
html_show_copyright = False
html_last_updated_fmt = ""

# Buttons that open a lesson's hosted copy, where it is known whose site this is: in a
# workflow on GitHub. The workflow `site` publishes the copies to that branch.
REPOSITORY = os.environ.get("GITHUB_REPOSITORY")
HOSTED = "hosted"
if REPOSITORY:
    html_theme_options |= {
        "repository_url": f"https://github.com/{REPOSITORY}",
        "repository_branch": HOSTED,
        "launch_buttons": {"colab_url": "https://colab.research.google.com"},
    }


def add_kaggle(app, pagename, templatename, context, doctree):
    """Add a button for Kaggle, which the theme doesn't know, beside that for Colab."""
    raw = f"https://raw.githubusercontent.com/{REPOSITORY}/{HOSTED}/{pagename}.ipynb"
    for group in context["header_buttons"]:
        if group["label"] == "launch-buttons":
            kaggle = {"type": "link", "text": "Kaggle", "icon": "fab fa-kaggle"}
            kaggle["tooltip"] = "Launch on Kaggle"
            kaggle["url"] = f"https://www.kaggle.com/kernels/welcome?src={raw}"
            group["buttons"].append(kaggle)


def setup(app):
    # Later than the theme's own buttons, whose priorities are up to 501.
    app.connect("html-page-context", add_kaggle, priority=502)
