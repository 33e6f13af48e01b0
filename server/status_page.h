// The status page, made one file of server/status_page/ when the daemon is built.

#ifndef EMBCACHE_SERVER_STATUS_PAGE_H_
#define EMBCACHE_SERVER_STATUS_PAGE_H_

#include <string>

namespace embcache {

extern const char kStatusPageHtml[];
// Hexadecimal, of what stands between its <style> and its <script> tags.
extern const char kStatusPageStyleSha256[];
extern const char kStatusPageScriptSha256[];

// The Content-Security-Policy: the page's own script and style run, it may ask its own daemon, and
// nothing else is loaded or sent anywhere.
std::string StatusPagePolicy();

}  // namespace embcache

#endif  // EMBCACHE_SERVER_STATUS_PAGE_H_
