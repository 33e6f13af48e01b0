# Makes one page of index.html, style.css and page.js, as a C++ source: cmake -DFOLDER=... -DOUT=... -P
file(READ ${FOLDER}/index.html page)
file(READ ${FOLDER}/style.css style)
file(READ ${FOLDER}/page.js script)
string(SHA256 style_hash "${style}")
string(SHA256 script_hash "${script}")
string(REPLACE "@STYLE@" "${style}" page "${page}")
string(REPLACE "@SCRIPT@" "${script}" page "${page}")
file(WRITE ${OUT} "// Made by server/status_page/embed.cmake.
#include \"server/status_page.h\"

namespace embcache {

const char kStatusPageHtml[] = R\"page(${page})page\";
const char kStatusPageStyleSha256[] = \"${style_hash}\";
const char kStatusPageScriptSha256[] = \"${script_hash}\";

}  // namespace embcache
")
